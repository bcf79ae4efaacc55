"""The bytes of activations that a rank keeps in a step, and its peak memory."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

from nnmpi.addons.planning.paper.rank import exchanges, memory
from nnmpi.addons.planning.paper.recording import passes
from nnmpi.addons.planning.rank_lists import whole_stages
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import divide
from nnmpi.parallel.arrangement.exchanges import received
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.facts.passes import PassBytes
from nnmpi.parallel.step_list.chain import chain_of
from nnmpi.parallel.step_list.gradients import gradient_slots
from nnmpi.schedules.op import Kind, Op


def activations(a: Arrangement, rank: int, batch: int) -> int:
    """Returns a rank's peak bytes of activations in a step over so many samples."""
    sizes = micro_batches(a, rank, batch)
    if a.strategy.kept is not None:
        return round(a.strategy.kept + pass_bytes(a, rank, 0, max(sizes)).enters)
    return max((held for _, _, held in passes_in_order(a, rank, sizes)), default=0)


def pass_bytes(a: Arrangement, rank: int, stage: int, samples: int) -> PassBytes:
    """Returns the bytes of activations and temporaries of a rank's passes through a stage."""
    return passes(a, rank, stage, samples).nbytes


def passes_in_order(
    a: Arrangement, rank: int, sizes: Sequence[int]
) -> Iterator[tuple[Op, PassBytes, int]]:
    """Yields (operation, PassBytes, held) for each pass of a rank's step, in order.

    PassBytes has what passes of its stage read and keep for one micro-batch; `held` is the number
    of bytes of activations that the rank stores when the pass begins.
    """
    if not a.steps_together:  # PipeDream: as many batches are under way as there are stages
        sizes = [*sizes] * len(a.stages)
    listed = whole_stages(a, len(sizes))[a.mesh.coordinates(rank)["pp"]].passes
    again = {(op.stage, op.micro) for op in listed if op.kind is Kind.RECOMPUTE}
    held, nbytes_of = 0, cache(partial(pass_bytes, a, rank))
    for op in listed:
        of_pass = nbytes_of(op.stage, sizes[op.micro])
        yield op, of_pass, held
        if op.kind is Kind.F:
            held += of_pass.enters if (op.stage, op.micro) in again else of_pass.kept
        elif op.kind is Kind.RECOMPUTE:
            held += of_pass.kept - of_pass.enters
        elif op.kind is Kind.I:
            held += of_pass.left - of_pass.kept
        elif op.kind in (Kind.B, Kind.W):
            held -= of_pass.left if op.kind is Kind.W else of_pass.kept


def needed(a: Arrangement, rank: int, batch: int) -> int:
    """Returns the peak bytes of a rank's arrays in a step, with messages and receive buffers."""
    held = memory(a, rank, batch).total
    if rank >= a.mesh.size:
        return held
    messages = receive_buffers(a, rank, batch) + message_buffers(a, rank, batch)
    return held + messages + _in_passes(a, rank, batch)


def _in_passes(a: Arrangement, rank: int, batch: int) -> int:
    """Returns the peak of kept activations plus temporaries of the running pass."""
    micro = micro_batches(a, rank, batch)
    if a.strategy.kept is not None:
        of_stage = partial(pass_bytes, a, rank, samples=max(micro))
        more = (of_stage(s).more.get(Kind.B, 0) for s in a.model_on(rank).stages)
        return activations(a, rank, batch) + max(more)
    return max((peak for _, _, peak in alive(a, rank, micro)), default=0)


def alive(a: Arrangement, rank: int, sizes: Sequence[int]) -> Iterator[tuple[Op, int, int]]:
    """Yields, for each pass of a rank's step, (operation, bytes when it begins, bytes at its peak),
    of activations and of samples that are loaded but not used yet."""
    copies = waiting = 0  # waiting: samples that no pass keeps; a batch is loaded as a whole
    is_first = a.steps_together and 0 in a.model_on(rank).stages
    if is_first:
        waiting = sum(pass_bytes(a, rank, 0, n).enters for n in sizes)
    for op, of_pass, held in passes_in_order(a, rank, sizes):
        samples = of_pass.enters if is_first and not op.stage else 0
        # a pass that is replayed has its input twice: where it arrives, and where it is read
        copy = of_pass.enters if _replays(a) and of_pass.calls else 0
        if op.kind is Kind.F:
            waiting -= samples
        if op.kind is (Kind.RECOMPUTE if a.config.recompute == "stage" else Kind.F):
            copies += copy
        begins_with = waiting + held + copies
        yield op, begins_with, begins_with + _more(op.kind, of_pass)
        if op.kind in (Kind.B, Kind.W):
            waiting, copies = waiting + samples, copies - copy


def _replays(a: Arrangement) -> bool:
    """True if passes may be recorded and run as lists of kernels here, which needs more memory."""
    return a.config.compile is not False and not a.cluster.has_devices


def _more(kind: Kind, of_pass: PassBytes) -> int:
    """Returns the bytes that a pass needs at its peak, beyond those when it begins."""
    if kind is Kind.RECOMPUTE:  # its input is kept already
        return of_pass.more[Kind.F] - of_pass.enters
    return of_pass.more.get(kind, 0)


def receive_buffers(a: Arrangement, rank: int, batch: int) -> int:
    """Returns the bytes of the buffers into which a rank receives data to add to its own.

    All sums of gradients may be in flight at once, each with a buffer. The reduce-scatters of ZeRO
    2 and 3 have as many buffers as there are slots (memory for the gradients of one bucket). All
    other exchanges of a group of ranks follow each other and share a buffer.
    """
    at_once, most = 0, Counter[tuple[int, ...]]()
    scattered, scatters = 0, 0
    for exchange in chain.from_iterable(exchanges(a, rank, batch).values()):
        nbytes = received(a, exchange, rank)
        if exchange.during is Kind.SUM and not a.store.scatters:
            at_once += exchange.times * nbytes
        elif exchange.during is Kind.SUM:
            scattered, scatters = max(scattered, nbytes), scatters + exchange.times
        else:
            most[exchange.group] = max(most[exchange.group], nbytes)
    slots = {*gradient_slots(chain_of(a, rank)).values()} if a.store.scatters else ()
    return at_once + min(len(slots), scatters) * scattered + most.total()


def message_buffers(a: Arrangement, rank: int, batch: int) -> int:
    """Returns the bytes of the messages between stages that a rank holds, besides activations.

    For each stage of the rank: the next activation to arrive, the gradient of its input that is
    being sent, and the next gradient to arrive. For all together: the longest activation being
    sent.
    """
    micro = micro_batches(a, rank, batch)
    if a.strategy.kept is not None or len(micro) == 1:
        return 0
    at, stages, nbytes, longest = a.mesh.coordinates(rank), a.division.stages, 0, 0
    for s in a.model_on(rank).stages:
        taken = stages[s].takes if s else ()
        sent = stages[s + 1].takes if s + 1 < len(stages) else ()
        back = (e for e in (*taken, *sent) if a.graph.edges[e].requires_grad)
        nbytes += sum(a.local_bytes(e, max(micro), at) for e in (*taken, *back))
        longest = max(longest, sum(a.local_bytes(e, max(micro), at) for e in sent))
    return nbytes + longest


def kept_by_units(
    a: Arrangement, units: Sequence[Unit], samples: int, rank: int
) -> list[tuple[int, int]]:
    """Returns (kept, of input) for each unit: the bytes of activations that it keeps for its
    backward pass, and those of its input among them; the model's own input counts as 0."""
    on_one_rank = divide(a.graph, units, range(1, len(units)), [0] * len(units))
    in_units = replace(a, division=on_one_rank)
    kept, out_read = list[tuple[int, int]](), 0
    for i in range(len(units)):
        unit = pass_bytes(in_units, rank, i, samples)
        enters = unit.enters if i else 0
        kept.append((max(unit.inside + (max(unit.read, out_read) if i else 0), enters), enters))
        out_read = unit.out_read
    return kept

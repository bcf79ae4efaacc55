"""The bytes of activations that a rank keeps in a step, and needs at most, by the recorded passes
of its stages in the order of its program."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.division import divide
from nnmpi.parallel.arrangement.exchanges import received
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.arrangement.program import SLOTS, micro_batches, ops
from nnmpi.planning.paper.rank import exchanges, memory
from nnmpi.planning.paper.recording import passes
from nnmpi.planning.paper.stage import PassBytes
from nnmpi.schedules.op import Kind, Op


def activations(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps at a time in a step over a batch of so many samples."""
    sizes = micro_batches(a, rank, batch)
    if a.residences is not None:
        beside = pass_bytes(a, rank, 0, max(sizes)).enters - a.residences.state
        return round(a.residences.memory + beside)
    return max((held for _, _, held in kept_before(a, rank, sizes)), default=0)


def pass_bytes(a: Arrangement, rank: int, stage: int, samples: int) -> PassBytes:
    """The bytes that the passes of a stage over so many samples take on a rank."""
    return passes(a, rank, stage, samples).nbytes


def kept_before(
    a: Arrangement, rank: int, sizes: Sequence[int]
) -> Iterator[tuple[Op, PassBytes, int]]:
    """The passes of a step over micro-batches of so many samples; each with the bytes that it takes
    and those that the rank keeps when it begins."""
    if not a.steps_together:  # as many batches are on their way as there are stages
        sizes = [*sizes] * len(a.stages)
    program = [op for op in ops(a, rank, len(sizes)) if op.micro >= 0]
    again = {(op.stage, op.micro) for op in program if op.kind is Kind.RECOMPUTE}
    held, nbytes_of = 0, cache(partial(pass_bytes, a, rank))
    for op in program:
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
    """The bytes of a rank's arrays in a step: what it holds, what it keeps and what passes at the
    same time, and messages: what it receives to add it, and what goes from stage to stage."""
    held = memory(a, rank, batch).total
    if rank >= a.mesh.size:
        return held
    messages = receive_buffers(a, rank, batch) + message_buffers(a, rank, batch)
    return held + messages + _in_passes(a, rank, batch)


def python_objects(a: Arrangement) -> int:
    """The bytes of Python objects of a run, which count beside the arrays of a small model: for
    each node of the model of its layer, its parameters, the graph and the tape."""
    return 120_000 + 10_000 * len(a.graph.nodes)


def _in_passes(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps, with what the pass takes beside that is under way."""
    micro = micro_batches(a, rank, batch)
    if a.residences is not None:
        of_stage = partial(pass_bytes, a, rank, samples=max(micro))
        more = (of_stage(s).more.get(Kind.B, 0) for s in a.model_on(rank).stages)
        return activations(a, rank, batch) + max(more)
    most = waiting = 0  # samples of micro-batches that no pass keeps: all come with their batch
    is_first = a.steps_together and 0 in a.model_on(rank).stages
    if is_first:
        waiting = sum(pass_bytes(a, rank, 0, n).enters for n in micro)
    for op, of_pass, held in kept_before(a, rank, micro):
        samples = of_pass.enters if is_first and not op.stage else 0
        if op.kind is Kind.F:
            waiting -= samples
        most = max(most, waiting + held + _more(op.kind, of_pass))
        if op.kind in (Kind.B, Kind.W):
            waiting += samples
    return most


def _more(kind: Kind, of_pass: PassBytes) -> int:
    """The most bytes that a pass takes beside those that are kept when it begins."""
    if kind is Kind.RECOMPUTE:  # its input is there
        return of_pass.more[Kind.F] - of_pass.enters
    return of_pass.more.get(kind, 0)


def receive_buffers(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes into which a rank receives what it adds to its own: sums of gradients may all be
    under way at once, as many of those that ZeRO scatters in a backward pass as it has slots,
    others of a group follow each other."""
    at_once, most = 0, Counter[tuple[int, ...]]()
    scattered, scatters = 0, 0
    for exchange in chain.from_iterable(exchanges(a, rank, batch).values()):
        nbytes = received(a, exchange, rank)
        if exchange.during is Kind.REDUCE:
            at_once += nbytes
        elif exchange.during is Kind.B and exchange.stage < 0:
            scattered, scatters = max(scattered, nbytes), scatters + exchange.times
        else:
            most[exchange.group] = max(most[exchange.group], nbytes)
    return at_once + min(SLOTS, scatters) * scattered + most.total()


def message_buffers(a: Arrangement, rank: int, batch: int) -> int:
    """The bytes for messages between stages beside the micro-batches that a rank works on: where a
    stage begins the next activation and a gradient on its way, where it ends the next gradient."""
    micro = micro_batches(a, rank, batch)
    if a.residences is not None or len(micro) == 1:
        return 0
    at, stages, nbytes = a.mesh.coordinates(rank), a.division.stages, 0
    for s in a.model_on(rank).stages:
        taken = stages[s].takes if s else ()
        sent = stages[s + 1].takes if s + 1 < len(stages) else ()
        back = (e for e in (*taken, *sent) if a.graph.edges[e].requires_grad)
        nbytes += sum(a.local_bytes(e, max(micro), at) for e in (*taken, *back))
    return nbytes


def kept_by_units(
    a: Arrangement, units: Sequence[Unit], samples: int, rank: int
) -> list[tuple[int, int]]:
    """(all that a unit keeps, of it its input) for each; the samples count nowhere."""
    in_units = replace(a, division=divide(a.graph, units, range(1, len(units)), 1))
    kept, out_read = list[tuple[int, int]](), 0
    for i in range(len(units)):
        unit = pass_bytes(in_units, rank, i, samples)
        enters = unit.enters if i else 0
        kept.append((max(unit.inside + (max(unit.read, out_read) if i else 0), enters), enters))
        out_read = unit.out_read
    return kept

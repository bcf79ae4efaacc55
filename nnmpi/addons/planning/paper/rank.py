"""A rank's exchanges in a step, by its list, and its memory between steps."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from nnmpi.addons.planning.paper.built import built
from nnmpi.addons.planning.paper.recording import passes
from nnmpi.collectives.algorithms import Collective
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.exchanges import (
    TRAFFIC_AXES,
    AxisExchange,
    AxisTraffic,
    Exchange,
    Traffic,
    sent,
)
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.arrangement.rank_model import Memory
from nnmpi.parallel.arrangement.state_on_paper import untrained_on_paper
from nnmpi.parallel.facts import exchanges as facts
from nnmpi.parallel.facts.passes import PassExchange
from nnmpi.parallel.step_list.step import first_alike, step_list
from nnmpi.parallel.stores.node import NodeStore
from nnmpi.schedules.op import SENDS, Kind
from nnmpi.schedules.pipeline import SCHEDULES


class PaperStep(NamedTuple):
    """The exchanges of one rank in a step.

    exchanges     a dict: axis of the mesh -> the rank's collectives and messages along it
    bytes_copied  read and written to pack and unpack messages, in a step on average
    by_op         a dict: (kind of operation, bucket) -> the exchanges that each of them starts
    """

    exchanges: Mapping[str, list[Exchange]]
    bytes_copied: float = 0.0
    by_op: Mapping[tuple[Kind, int], Sequence[Exchange]] = {}


def exchanges(a: Arrangement, rank: int, batch: int) -> Mapping[str, list[Exchange]]:
    """Returns a rank's exchanges in a step over so many samples, by axis."""
    return step(a, rank, batch).exchanges


@cached
def step(a: Arrangement, rank: int, batch: int) -> PaperStep:
    """Returns a rank's exchanges in a step, by walking its list."""
    if rank >= a.mesh.size:  # servers compute no stage
        return PaperStep({})
    sizes = micro_batches(a, rank, batch)
    few, period = few_micro_batches(a, sizes)
    ops = _ops(a, rank, sizes[:few])
    made = _made(a, rank, ops)
    if few < len(sizes):
        more = _made(a, rank, _ops(a, rank, sizes[: few + period]))
        periods = (len(sizes) - few) // period
        made = Counter({e: n + periods * (more[e] - n) for e, n in made.items()})
    by_axis = dict[str, list[Exchange]]()
    for (axis, exchange), times in made.items():
        by_axis.setdefault(axis, []).append(exchange._replace(times=times))
    averages = a.strategy.averages
    copied = averages.bytes_copied(a, rank) if averages else a.store.bytes_copied(a, rank)
    return PaperStep(by_axis, copied, _by_op(a, rank, ops))


def _ops(a: Arrangement, rank: int, sizes: Sequence[int]) -> Mapping[facts.SameOps, int]:
    """Returns how often operations that exchange the same occur; replicas have equal lists."""
    if a.strategy.micro_batches is None:
        rank = a.replicas(rank)[0] if a.strategy.lists else first_alike(a, rank)
    return _counted(a, rank, tuple(sizes))


@cached
def _counted(a: Arrangement, rank: int, sizes: tuple[int, ...]) -> Mapping[facts.SameOps, int]:
    return facts.counted(step_list(a, rank, len(sizes)).ops, sizes)


def _made(a: Arrangement, rank: int, ops: Mapping[facts.SameOps, int]) -> Counter[AxisExchange]:
    """Returns how often a rank makes each exchange in the operations of a step."""

    def in_passes(stage: int, samples: int) -> Mapping[Kind, Mapping[PassExchange, int]]:
        return passes(a, rank, stage, samples).exchanges

    return facts.exchanges(a, rank, ops, in_passes)


def _by_op(
    a: Arrangement, rank: int, ops: Mapping[facts.SameOps, int]
) -> Mapping[tuple[Kind, int], Sequence[Exchange]]:
    """Returns the exchanges of operations on buckets, and at the end of a step."""
    made = {
        (op.kind, op.at): [exchange for _, exchange in facts.exchanges_of(a, rank, op)]
        for op, _ in ops
        if op.kind not in SENDS
    }
    return {at: exchanges for at, exchanges in made.items() if exchanges}


def few_micro_batches(a: Arrangement, sizes: Sequence[int]) -> tuple[int, int]:
    """Returns two numbers of micro-batches, (few, period), by which a long step need not be
    walked whole: if a step has at least `few`, then `period` more always add the same exchanges.
    Both are `len(sizes)` if this is not known to hold. `sizes` are the samples of each micro-batch.

    Once its pipeline is full, 1F1B repeats its order of passes with each micro-batch or, with
    several stages per rank, with each pp micro-batches. Only ZeRO 2 and 3 exchange gradients or
    parameters in all of these passes, and need a full pipeline in the short step; others sum
    gradients in the last passes. A user's schedule may repeat nothing, or allow one number alone.
    """
    m, pp, stages = len(sizes), a.mesh.axes["pp"], len(a.stages)
    is_plain = a.steps_together and not a.strategy.lists
    is_of_user = a.config.schedule not in SCHEDULES
    if not is_plain or is_of_user or len({*sizes}) > 1:
        return m, m
    period = pp if stages > pp else 1
    least = max(3 * pp + 1, 2 * period) if a.store.zero > 1 else 2 * period
    return least + (m - least) % period, period


@cached
def _held(a: Arrangement, rank: int, batch: int) -> Memory:
    """Returns what a rank holds between steps: parameters, and memory of its node."""
    paper_rank = built(a, rank)
    for e in chain.from_iterable(exchanges(a, rank, batch).values()):
        # sums of gradients have got theirs when the store was made
        if e.operation is Collective.ALL_REDUCE and e.during is not Kind.SUM:
            paper_rank.memory.add_sum(e.algorithm, e.group, e.elements, e.dtype)
    store, windows = paper_rank.store, sum(paper_rank.memory.windows.values())
    masters = 0 if store.masters is None else store.masters.nbytes
    values, gradients = store.parameter_bytes(), store.gradient_bytes()
    if isinstance(store, NodeStore):
        windows -= values + gradients
    optimizer_state = sum(array.nbytes for array in paper_rank.optimizer.state.values())
    slots = store.slot_bytes() + paper_rank.memory.wide_copy
    if a.strategy.averages:
        slots += a.strategy.averages.copies(a) * (masters or values)
    return Memory(values, gradients, optimizer_state + masters, slots=slots, windows=windows)


def memory(a: Arrangement, rank: int, batch: int) -> Memory:
    """Returns the memory that a rank holds between two steps over batches of `batch` samples."""
    sizes = {True: 0, False: 0}
    for x in untrained_on_paper(a, rank):
        sizes[not x.may_differ] += x.nbytes
    of_trained = _held(a, rank, batch)
    return of_trained._replace(parameters=of_trained.parameters + sizes[True], buffers=sizes[False])


def traffic(a: Arrangement, rank: int, batch: int) -> AxisTraffic:
    """Returns the bytes and messages that a rank sends along each axis in a step."""
    by_axis = exchanges(a, rank, batch)
    return {axis: all_sent(a, rank, by_axis.get(axis, ())) for axis in TRAFFIC_AXES}


def parameters_sent(a: Arrangement, rank: int, batch: int) -> Traffic:
    """Returns how much of a rank's traffic along dp in a step is parameters, which ZeRO gathers."""
    along_dp = exchanges(a, rank, batch).get("dp", ())
    return all_sent(a, rank, (each for each in along_dp if each.what == "parameters"))


def all_sent(a: Arrangement, rank: int, exchanges: Iterable[Exchange]) -> Traffic:
    """Returns a rank's bytes and messages for exchanges, as a rounded mean."""
    in_period, period = sent_in_period(a, rank, exchanges)
    return in_period.over(period)


def sent_in_period(a: Arrangement, rank: int, exchanges: Iterable[Exchange]) -> tuple[Traffic, int]:
    """Returns (a rank's traffic for these exchanges in so many steps that each occurs a whole
    number of times, the number of steps)."""
    logged = [*exchanges]
    period = max((each.every for each in logged), default=1)  # others happen in each of its steps
    in_period = (sent(a, each, rank).times(period // each.every) for each in logged)
    return sum(in_period, Traffic()), period

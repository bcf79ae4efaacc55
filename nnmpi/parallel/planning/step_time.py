"""How long a step takes on a machine: the programs of the schedule, on a clock for each stage.

compute    units of the slowest rank along pp, each pass of each micro-batch
tensor     its exchanges within these passes: along tp and cp, statistics
bubble     its idle time: the schedule's, and messages between stages
sums       of gradients, and parameters that ZeRO 3 gathers, as far as no pass hides them
update     the optimizer, what ranks agree on, and parameters that are gathered behind it
other      what no unit and no exchange takes: batches, losses, Python
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.partition import Unit
from nnmpi.parallel.arrangement.program import micro_batches, ops
from nnmpi.parallel.arrangement.traffic import exchanges
from nnmpi.parallel.planning.exchange_time import ExchangeTimes, total
from nnmpi.parallel.planning.machine import Machine
from nnmpi.parallel.planning.unit_times import unit_times
from nnmpi.schedules.op import Kind
from nnmpi.sim.pipeline import Costs, simulate, stage_times

SENDS = (Kind.SEND_F, Kind.SEND_B)
BACKWARD = (Kind.B, Kind.I, Kind.W)


class StepTime(NamedTuple):
    """Seconds of a step, term by term."""

    compute: float
    tensor: float
    bubble: float
    sums: float
    update: float
    other: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self)


class _RankTimes(NamedTuple):
    """What one rank does in a step, besides messages between stages.

    compute  seconds of each pass of a micro-batch, by stage
    tensor   seconds of exchanges within a pass, by stage and kind
    gathers  parameters of ZeRO 3, and gradients that each pass scatters
    sums     of gradients, in the order in which they begin
    update   the optimizer, and exchanges around it
    """

    compute: Mapping[int, Mapping[Kind, float]]
    tensor: Mapping[tuple[int, Kind], float]
    gathers: Sequence[Exchange]
    sums: Sequence[Exchange]
    update: float


def step_time(a: Arrangement, units: Sequence[Unit], machine: Machine) -> StepTime:
    """The seconds of a step over one batch of the config, by the ranks that differ along pp."""
    times, config = ExchangeTimes(machine, a.cluster), a.config
    groups = a.mesh.groups("pp")
    ranks = groups[0]
    micro = micro_batches(a, ranks[0], config.batch_size)
    found = [_rank_times(a, units, machine, times, rank, micro) for rank in ranks]
    programs = [ops(a, rank, len(micro)) for rank in ranks]
    stages = dict(chain.from_iterable(one.compute.items() for one in found))
    tensor = dict(chain.from_iterable(one.tensor.items() for one in found))
    passes = [
        {kind: t + tensor.get((s, kind), 0.0) for kind, t in stages[s].items()}
        for s in range(len(stages))
    ]
    simulated = simulate(programs, Costs(passes, _message(a, times, ranks, config.batch_size)))
    slowest = max(range(len(ranks)), key=lambda k: simulated.busy[k])
    compute = sum(stages[op.stage].get(op.kind, 0.0) for op in programs[slowest] if op.micro >= 0)
    ends = [
        (_exposed(one, simulated.busy[k], passes, times), one.update) for k, one in enumerate(found)
    ]
    sums, update = max(ends, key=sum)
    busy = simulated.busy[slowest]
    other = machine.step + len(micro) * machine.micro_batch
    return StepTime(compute, busy - compute, simulated.makespan - busy, sums, update, other)


def _rank_times(
    a: Arrangement,
    units: Sequence[Unit],
    machine: Machine,
    times: ExchangeTimes,
    rank: int,
    micro: Sequence[int],
) -> _RankTimes:
    """What a rank takes, one pass at a time."""
    of_units, stages = unit_times(a, units, rank, max(micro), machine), a.model_on(rank).stages
    compute = dict[int, Mapping[Kind, float]]()
    for s in stages:
        here = [
            t for unit, t in zip(units, of_units, strict=True) if unit.nodes.start in a.stages[s]
        ]
        f, i, w = (sum(column) for column in zip(*here, strict=True))
        compute[s] = stage_times(f, i, w) if s else stage_times(f, 0.0, i + w)
    counts = Counter((op.stage, op.kind) for op in ops(a, rank, len(micro)) if op.micro >= 0)
    tensor = defaultdict[tuple[int, Kind], float](float)
    gathers, sums, updates = list[Exchange](), list[Exchange](), list[Exchange]()
    found = chain.from_iterable(exchanges(a, rank, a.config.batch_size).values())
    for one in found:
        if one.during in SENDS:
            continue
        if one.stage >= 0:
            at = one.stage, _performed(one, counts)
            tensor[at] += times.seconds(one) / counts[at]
        else:
            of_phase = {Kind.REDUCE: sums, Kind.UPDATE: updates}
            of_phase.get(one.during, gathers).append(one)
    numbers = sum(stop - start for start, stop in a.owned_ranges(rank))
    update = numbers * machine.updates[a.config.optimizer] + total(times, updates)
    return _RankTimes(compute, tensor, gathers, sums, update)


def _performed(one: Exchange, counts: Mapping[tuple[int, Kind], int]) -> Kind:
    """The operation in which an exchange of a backward pass happens: B, or the first of two."""
    there = [kind for kind in (one.during, *BACKWARD) if counts.get((one.stage, kind))]
    return there[0]


def _message(a: Arrangement, times: ExchangeTimes, ranks: Sequence[int], batch: int) -> float:
    """The seconds of the longest message between two stages."""
    along = chain.from_iterable(exchanges(a, rank, batch)["pp"] for rank in ranks)
    return max((times.seconds(one) for one in along), default=0.0)


def _exposed(
    one: _RankTimes, busy: float, passes: Sequence[Mapping[Kind, float]], times: ExchangeTimes
) -> float:
    """The seconds of sums and gathers that no pass hides.

    Between nodes messages travel while a rank computes. On a node the ranks move them themselves.
    """
    gathers = total(times, one.gathers)
    if one.gathers and times.is_between_nodes(one.gathers[0]):
        gathers = max(gathers - busy, 0.0)
    clock, done = 0.0, 0
    numbers = sum(sum_.numbers for sum_ in one.sums)
    last = sum(passes[s].get(Kind.B, 0.0) for s in one.compute)
    for sum_ in one.sums:
        done += sum_.numbers
        if times.is_between_nodes(sum_):
            clock = max(clock, last * (done / numbers - 1))
        clock += times.seconds(sum_)
    return gathers + max(clock, 0.0)

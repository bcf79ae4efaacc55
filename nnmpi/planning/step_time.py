"""How long a step takes on a machine: the programs of the schedule, on a clock for each stage.

compute    units of the rank along pp that is busy longest, each pass of each micro-batch
tensor     its exchanges within these passes: along tp and cp, statistics
bubble     what passes take longer than that, on the rank whose gradients are summed last
sums       of gradients, and parameters that ZeRO 3 gathers, as far as no pass hides them
update     the optimizer, what ranks agree on, and parameters that are gathered behind it
other      what no unit and no exchange takes: batches, losses, Python; of what a micro-batch takes,
           a rank along pp has as large a share as of its units
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.program import micro_batches, ops
from nnmpi.planning.exchange_time import ExchangeTimes
from nnmpi.planning.machine import Machine
from nnmpi.planning.paper.rank import exchanges
from nnmpi.planning.unit_times import ModelTimes
from nnmpi.schedules.op import Kind, Op
from nnmpi.sim.pipeline import Costs, run, stage_times

SENDS = (Kind.SEND_F, Kind.SEND_B)


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


class CostModel(NamedTuple):
    """The costs of a step that are known before ranks are arranged."""

    machine: Machine
    model: ModelTimes
    exchanges: ExchangeTimes


class RankTimes(NamedTuple):
    """The times and exchanges of one rank in a step.

    compute  seconds of each pass of a micro-batch, by stage
    tensor   seconds of exchanges within a pass, by stage and kind
    on_link  of these, the seconds of exchanges between nodes
    inside   these exchanges
    gathers  parameters of ZeRO 3, and gradients that each pass scatters
    sums     of gradients, in the order in which they begin
    numbers  that it updates
    around   exchanges around the update
    update   seconds of both
    messages  seconds of those to other stages for a micro-batch, by kind and stage
    """

    compute: Mapping[int, Mapping[Kind, float]]
    tensor: Mapping[tuple[int, Kind], float]
    on_link: Mapping[tuple[int, Kind], float]
    inside: Sequence[Exchange]
    gathers: Sequence[Exchange]
    sums: Sequence[Exchange]
    numbers: int
    around: Sequence[Exchange]
    update: float
    messages: Mapping[tuple[Kind, int], float]


class StepModel(NamedTuple):
    """The time of a step, and what it was made of.

    ranks     along pp, with their programs; of those along dp, cp and tp the last ones have most:
              it is they that the others wait for
    micro     samples of each of their micro-batches
    busiest   which of these computes longest
    last      whose gradients are summed last
    """

    time: StepTime
    ranks: Sequence[RankTimes]
    programs: Sequence[Sequence[Op]]
    micro: Sequence[int]
    busiest: int
    last: int


def step_time(a: Arrangement, costs: CostModel) -> StepTime:
    """The seconds of a step over one batch of the config."""
    return step_model(a, costs).time


def step_model(a: Arrangement, costs: CostModel) -> StepModel:
    """The time of a step, and what it is made of."""
    ranks = a.mesh.group(a.mesh.size - 1, "pp")
    micro = micro_batches(a, ranks[0], a.config.batch_size)
    programs = [ops(a, rank, len(micro)) for rank in ranks]
    pairs = zip(ranks, programs, strict=True)
    found = [_rank_times(a, costs, rank, micro, program) for rank, program in pairs]
    stages = dict(chain.from_iterable(one.compute.items() for one in found))
    tensor = dict(chain.from_iterable(one.tensor.items() for one in found))
    passes = [
        {kind: t + tensor.get((s, kind), 0.0) for kind, t in stages[s].items()}
        for s in range(len(stages))
    ]
    links = dict(chain.from_iterable(one.messages.items() for one in found))
    ends, all_busy = [0.0] * len(ranks), [0.0] * len(ranks)
    for span in run(programs, Costs(passes, links=links)):
        all_busy[span.rank] += span.end - span.start
        ends[span.rank] = max(ends[span.rank], span.end)
    sums = [_exposed(*each, costs.exchanges) for each in zip(found, all_busy, strict=True)]
    done = max(end + after for end, after in zip(ends, sums, strict=True))
    busiest = max(range(len(ranks)), key=all_busy.__getitem__)
    busy = all_busy[busiest]
    computed = (op for op in programs[busiest] if op.micro >= 0)
    compute = sum(stages[op.stage].get(op.kind, 0.0) for op in computed)
    last = max(range(len(ranks)), key=lambda k: ends[k] + sums[k])
    passed = max(ends[last], busy)
    all_units = len(micro) * sum(t[Kind.F] + t[Kind.B] for t in stages.values())
    share = compute / all_units if len(ranks) > 1 and all_units else 1.0
    time = StepTime(
        compute=compute,
        tensor=busy - compute if any(one.tensor for one in found) else 0.0,
        bubble=passed - busy,
        sums=done - passed,
        update=max(one.update for one in found),
        other=costs.machine.step + share * len(micro) * costs.machine.micro_batch,
    )
    return StepModel(time, found, programs, micro, busiest, last)


def stage_passes(units: np.ndarray, is_first: bool) -> dict[Kind, float]:
    """The seconds of the passes of a stage with these units. Of the first one, all of a backward
    pass in two halves is done in the second one."""
    f, i, w = units.sum(axis=0).tolist()
    return stage_times(f, 0.0, i + w) if is_first else stage_times(f, i, w)


def _rank_times(
    a: Arrangement, costs: CostModel, rank: int, micro: Sequence[int], program: Sequence[Op]
) -> RankTimes:
    """The times and exchanges of a rank in a step, one pass at a time."""
    times, model = costs.exchanges, costs.model
    of_units = model.of(a.sharding, a.config, max(micro))
    compute = dict[int, Mapping[Kind, float]]()
    starts = [unit.nodes.start for unit in model.units]
    for s in a.model_on(rank).stages:
        here = slice(*(bisect_left(starts, end) for end in (a.stages[s].start, a.stages[s].stop)))
        compute[s] = stage_passes(of_units[here], is_first=s == 0)
    counts = Counter((op.stage, op.kind) for op in program if op.micro >= 0)
    tensor, on_link = (defaultdict[tuple[int, Kind], float](float) for _ in range(2))
    inside, gathers, sums, around = (list[Exchange]() for _ in range(4))
    along = exchanges(a, rank, a.config.batch_size)
    for one in chain.from_iterable(along.values()):
        if one.during in SENDS:
            continue
        if one.stage >= 0:
            at = one.stage, one.during
            tensor[at] += times.seconds(one) / counts[at]
            on_link[at] += times.is_between_nodes(one) * times.seconds(one) / counts[at]
            inside.append(one)
        else:
            of_phase = {Kind.REDUCE: sums, Kind.UPDATE: around}
            of_phase.get(one.during, gathers).append(one)
    numbers = sum(stop - start for start, stop in a.owned_ranges(rank))
    update = numbers * costs.machine.updates[a.config.optimizer] + times.total(around)
    messages = defaultdict[tuple[Kind, int], float](float)
    for one in along.get("pp", ()):
        messages[one.during, one.stage] += times.seconds(one) / len(micro)
    return RankTimes(
        *(compute, tensor, on_link, inside, gathers, sums, numbers, around, update, messages)
    )


def _exposed(one: RankTimes, busy: float, times: ExchangeTimes) -> float:
    """The seconds of sums and gathers that no pass hides.

    Between nodes messages travel while a rank computes, and while no exchange within a pass is on
    the same link: those of the first bucket begin when its part of the last backward pass has
    ended. On a node the ranks move them themselves.
    """
    gathers = times.total(one.gathers)
    if one.gathers and times.is_between_nodes(one.gathers[0]):
        inside = times.total(filter(times.is_between_nodes, one.inside))
        gathers = max(gathers - (busy - inside), 0.0)
    numbers, done = sum(sum_.numbers for sum_ in one.sums), 0
    last = sum(
        passes[Kind.B] + one.tensor[s, Kind.B] - one.on_link[s, Kind.B]
        for s, passes in one.compute.items()
    )
    clock = -last
    for sum_ in one.sums:
        done += sum_.numbers
        ready = last * (done / numbers - 1) if times.is_between_nodes(sum_) else 0.0
        clock = max(clock, ready) + times.seconds(sum_)
    return gathers + max(clock, 0.0)

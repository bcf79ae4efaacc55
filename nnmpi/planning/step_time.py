"""Predicts how long a step takes on a machine, by running the programs of the schedule on a clock
per stage.

compute    units of the rank along pp that is busy longest, in all passes of all micro-batches
tensor     exchanges of that rank within these passes: along tp and cp, batch statistics
bubble     idle time of the rank whose gradients are summed last
sums       of gradients, and ZeRO 3's gathers of parameters, as far as passes do not hide them; and
           exchanges of replicas that are averaged
packing    array functions that make what is sent from arrays, and arrays from what is received:
           codes of --compress; copies of parameters, their mean and an outer step
update     the optimizer, agreement of ranks, and gathers of parameters behind it
other      batches, losses, Python; a rank along pp takes as large a share of the time per
           micro-batch as it has of the units
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, pairwise, zip_longest
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.step import Collective
from nnmpi.options.collector import gc_paused
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.program import micro_batches, ops
from nnmpi.parallel.layout import AVERAGED
from nnmpi.planning.exchange_time import ExchangeTimes
from nnmpi.planning.machine import Machine
from nnmpi.planning.paper.rank import step
from nnmpi.planning.unit_times import ModelTimes
from nnmpi.schedules.op import Kind, Op
from nnmpi.sim.pipeline import Costs, run, stage_times

SENDS = (Kind.SEND_F, Kind.SEND_B)
PHASES = {Kind.REDUCE: "sums", Kind.UPDATE: "update"}


class StepTime(NamedTuple):
    """The predicted seconds of a step, term by term."""

    compute: float
    tensor: float
    bubble: float
    sums: float
    packing: float
    update: float
    other: float

    @property
    def seconds(self) -> float:
        """The seconds of the whole step."""
        return sum(self)


class CostModel(NamedTuple):
    """The costs that are known before ranks are arranged: of the machine, the model's units and
    exchanges."""

    machine: Machine
    model: ModelTimes
    exchanges: ExchangeTimes


class RankStep(NamedTuple):
    """The step of one rank: its program, the seconds of its units, and its logged exchanges.

    compute    seconds of each pass of a micro-batch, by stage
    exchanges  by what can hide them:
                   messages   to other stages
                   tensor     within a pass
                   gathers    parameters of ZeRO 3, and gradients that each pass scatters
                   sums       of gradients, in the order in which they begin
                   update     around the update
                   averages   of replicas, after the update
    numbers    how many elements it updates
    touched    bytes of arrays that it reads and writes to pack and unpack what is exchanged
    """

    program: Sequence[Op]
    compute: Mapping[int, Mapping[Kind, float]]
    exchanges: Mapping[str, Sequence[Exchange]]
    numbers: int
    touched: float

    def within_passes(
        self, seconds: Callable[[Exchange], float]
    ) -> Mapping[tuple[int, Kind], float]:
        """The seconds of exchanges within a pass of a micro-batch, by stage and kind of pass."""
        counts = Counter(map(itemgetter(0, 2), self.program))  # by kind and stage
        by_pass = defaultdict[tuple[int, Kind], float](float)
        for exchange in self.exchanges["tensor"]:
            stage, during = exchange.stage, exchange.during
            if not counts[during, stage]:  # a stage without a gradient of its input: W is its B
                during = Kind.W
            by_pass[stage, during] += seconds(exchange) / counts[during, stage]
        return by_pass

    def optimizer(self, a: Arrangement, costs: CostModel) -> float:
        """The seconds of the optimizer."""
        return self.numbers * costs.machine.updates[a.config.optimizer]

    def packing(self, a: Arrangement, costs: CostModel) -> float:
        """The seconds of the array functions that make what is sent, and use what is received."""
        coding = costs.machine.coding.get(a.config.compress or "", 0.0) if self.touched else 0.0
        return self.touched * costs.machine.moving + self.numbers * coding

    def update(self, a: Arrangement, costs: CostModel) -> float:
        """The seconds of the optimizer, and of the exchanges around it."""
        around = costs.exchanges.total(self.exchanges["update"])
        return self.optimizer(a, costs) + around - self.hidden_gathers(costs)

    def hidden_gathers(self, costs: CostModel) -> float:
        """The seconds of gathers after the update that the next forward pass of a micro-batch
        hides, where the machine does so; it waits for the first of them."""
        gathers = [e for e in self.exchanges["update"] if e.operation is Collective.ALL_GATHER]
        if not gathers or not hides(costs.machine, "zero1"):
            return 0.0
        seconds = [costs.exchanges.seconds(e) for e in gathers]
        forward = sum(passes[Kind.F] for passes in self.compute.values())
        return min(sum(seconds) - seconds[0] / gathers[0].times, forward)


class StepModel(NamedTuple):
    """The predicted time of a step, and what it was computed from.

    ranks     along pp, the last ones along dp, cp and tp: they have most, so others wait for them
    micro     samples of each of their micro-batches
    busiest   of these ranks, the one that computes longest
    last      the one whose gradients are summed last
    updated   the one whose update takes longest
    averaged  the one that takes longest for its mean with other replicas
    """

    time: StepTime
    ranks: Sequence[RankStep]
    micro: Sequence[int]
    busiest: RankStep
    last: RankStep
    updated: RankStep
    averaged: RankStep


def step_time(a: Arrangement, costs: CostModel) -> StepTime:
    """The seconds of a step over one batch of the config."""
    return step_model(a, costs).time


@gc_paused()
def step_model(a: Arrangement, costs: CostModel) -> StepModel:
    """The predicted time of a step over one batch of the config, with what it was computed from."""
    times, on_paper = costs.exchanges, a.mesh.group(a.mesh.size - 1, "pp")
    micro = micro_batches(a, on_paper[0], a.config.batch_size)
    of_units = costs.model.of(a.sharding, a.config, max(micro))
    compute_of = passes_of_stages(costs.model, of_units, [nodes.start for nodes in a.stages])
    ranks = [_rank_step(a, rank, len(micro), compute_of, costs) for rank in on_paper]
    stages = dict(chain.from_iterable(item.compute.items() for item in ranks))
    within = [exposed_in_passes(item, costs) for item in ranks]
    tensor = dict(chain.from_iterable(item.items() for item in within))
    passes = [
        {kind: t + tensor.get((s, kind), 0.0) for kind, t in stages[s].items()}
        for s in range(len(stages))
    ]
    links = defaultdict[tuple[Kind, int], float](float)
    for item in chain.from_iterable(rank.exchanges["messages"] for rank in ranks):
        links[item.during, item.stage] += times.seconds(item) / len(micro)
    computed = [[op for op in item.program if op.micro >= 0] for item in ranks]
    all_busy = [sum(passes[op.stage].get(op.kind, 0.0) for op in of_rank) for of_rank in computed]
    ends, idle = [0.0] * len(ranks), [0.0] * len(ranks)
    for span in run([item.program for item in ranks], Costs(passes, links=links)):
        idle[span.rank] += span.start - ends[span.rank]
        ends[span.rank] = span.end
    sums = [_exposed(*each, costs) for each in zip(ranks, within, all_busy, strict=True)]
    done = [end + after for end, after in zip(ends, sums, strict=True)]
    last, busiest = (max(range(len(ranks)), key=of.__getitem__) for of in (done, all_busy))
    compute = sum(stages[op.stage].get(op.kind, 0.0) for op in computed[busiest])
    exposed = sum(tensor.get((op.stage, op.kind), 0.0) for op in computed[busiest])
    # the terms have to add up, so the bubble is what the last rank takes longer than the busiest;
    # no term is a difference of equal sums, which would leave their rounding
    bubble = idle[last] + (all_busy[last] - all_busy[busiest])
    all_units = len(micro) * sum(t[Kind.F] + t[Kind.B] for t in stages.values())
    share = compute / all_units if len(ranks) > 1 and all_units else 1.0
    updated = max(ranks, key=lambda item: item.update(a, costs))
    averaged = max(ranks, key=lambda item: times.total(item.exchanges["averages"]))
    time = StepTime(
        compute=compute,
        tensor=exposed,
        bubble=max(bubble, 0.0),
        sums=max(sums[last] + min(bubble, 0.0), 0.0),
        packing=max(item.packing(a, costs) for item in ranks),
        update=updated.update(a, costs),
        other=costs.machine.step
        + share * len(micro) * costs.machine.micro_batch
        + host_seconds(a, costs.machine, len(micro)),
    )
    averages = _exposed_averages(averaged, a.config, costs, time.seconds)
    time = time._replace(sums=time.sums + averages)
    return StepModel(time, ranks, micro, ranks[busiest], ranks[last], updated, averaged)


def hides(machine: Machine, what: str) -> bool:
    """True if a described machine hides these exchanges behind computing."""
    return machine.sheet is not None and what in machine.sheet.hides


def host_seconds(a: Arrangement, machine: Machine, count: int) -> float:
    """The seconds in which devices wait for a described machine's host: for each of `count`
    micro-batches, and for each parameter of the rank that has most."""
    if machine.sheet is None:
        return 0.0
    parameters = max(len(a.model_on(rank).trained) for rank in a.mesh.group(0, "pp"))
    return count * machine.sheet.of_micro_batch + parameters * machine.sheet.of_parameter


def stage_passes(units: np.ndarray, is_first: bool) -> dict[Kind, float]:
    """The seconds of the passes of a stage with these units. In the first stage the second half of
    a backward pass does all of it."""
    f, i, w = units.sum(axis=0).tolist()
    return stage_times(f, 0.0, i + w) if is_first else stage_times(f, i, w)


def passes_of_stages(
    model: ModelTimes, of_units: np.ndarray, begins: Sequence[int]
) -> list[Mapping[Kind, float]]:
    """The seconds of the passes of each stage; a stage begins at each node of `begins`."""
    starts = [unit.nodes.start for unit in model.units]
    firsts = [bisect_left(starts, begin) for begin in begins]
    parts = (of_units[a:b] for a, b in pairwise([*firsts, len(starts)]))
    return [stage_passes(part, is_first=s == 0) for s, part in enumerate(parts)]


def exposed_in_passes(item: RankStep, costs: CostModel) -> Mapping[tuple[int, Kind], float]:
    """The seconds of exchanges within passes that computing does not hide, by stage and pass."""
    within = item.within_passes(costs.exchanges.seconds)
    if not hides(costs.machine, "tp"):
        return within
    longer = {at: t - item.compute[at[0]].get(at[1], 0.0) for at, t in within.items()}
    return defaultdict(float, {at: max(t, 0.0) for at, t in longer.items()})


def _rank_step(
    a: Arrangement,
    rank: int,
    micro: int,
    compute_of: Sequence[Mapping[Kind, float]],
    costs: CostModel,
) -> RankStep:
    """The step of a rank: its program, the seconds of its units, and its log on paper."""
    compute = {s: compute_of[s] for s in a.model_on(rank).stages}
    by_phase = defaultdict[str, list[Exchange]](list)
    sheet = costs.machine.sheet  # with --sequence-parallel, messages are parts already
    divides = sheet is not None and "pp" in sheet.divides and not a.config.cuts_positions
    on_paper = step(a, rank, a.config.batch_size)
    logged = dict(on_paper.exchanges)
    if a.config.sync in AVERAGED:
        by_phase["averages"] += logged.pop("dp", ())
    for exchange in chain.from_iterable(logged.values()):
        is_sent, is_inside = exchange.during in SENDS, exchange.stage >= 0
        if divides and is_sent:  # ranks along tp send a part each
            exchange = exchange._replace(numbers=-(-exchange.numbers // a.config.tp))
        phase = "messages" if is_sent else "tensor" if is_inside else PHASES.get(exchange.during)
        by_phase[phase or "gathers"].append(exchange)
    numbers = sum(stop - start for start, stop in a.owned_ranges(rank))
    return RankStep(ops(a, rank, micro), compute, by_phase, numbers, on_paper.touched)


def exposed_gathers(logged: Sequence[Exchange], busy: float, times: ExchangeTimes) -> float:
    """The seconds of gathers and scatters of ZeRO 2 and 3 that passes of `busy` seconds do not
    hide.

    Of a bucket they run while the passes compute the layers of the bucket before it, whose share of
    the passes is taken to be its share of the elements. Bucket 0 has none before it: nothing hides
    its gather for the first layers, nor its scatter at the end.
    """
    scatters = [e for e in logged if e.operation is Collective.REDUCE_SCATTER]
    gathers = [e for e in logged if e.operation is Collective.ALL_GATHER]
    # scatters are logged from the last bucket down, gathers up from bucket 1, and then bucket 0
    downwards = [*gathers[-2::-1], *gathers[-1:]]
    buckets = [*zip_longest(scatters, downwards)]
    numbers = [max(e.numbers for e in bucket if e) for bucket in buckets]
    seconds = [times.total(filter(None, bucket)) for bucket in buckets]
    bucket_0 = sum(times.seconds(e._replace(times=1)) for e in buckets[-1] if e)
    behind = pairwise([*zip(seconds, numbers, strict=True)])
    hidden_of = busy / sum(numbers)
    exposed = sum(max(t - hidden_of * before, 0.0) for (t, _), (_, before) in behind)
    return exposed + bucket_0 + max(seconds[-1] - bucket_0 - hidden_of * numbers[0], 0.0)


def _exposed(
    step: RankStep,
    within: Mapping[tuple[int, Kind], float],
    busy: float,
    costs: CostModel,
) -> float:
    """The seconds of gradient sums and gathers that no pass hides.

    Between nodes, messages travel while a rank computes, unless an exchange within a pass uses the
    same link; the first bucket starts when its part of the last backward pass has ended. On a node
    the ranks move bytes themselves, so nothing is hidden, unless the machine hides it.
    """
    times, hides_sums = costs.exchanges, hides(costs.machine, "dp")
    hides_gathers = hides_sums or hides(costs.machine, "zero3")
    sums, gathers = step.exchanges["sums"], times.total(step.exchanges["gathers"])
    on_link = step.within_passes(times.between_nodes)
    if gathers and (hides_gathers or times.is_between_nodes(step.exchanges["gathers"][0])):
        inside = sum(map(times.between_nodes, step.exchanges["tensor"]))
        gathers = exposed_gathers(step.exchanges["gathers"], busy - inside, times)
    # nothing hides what begins after the passes, such as the second phase of compressed sums
    numbers, done = sum(sum_.numbers for sum_ in sums if sum_.what == "gradients"), 0
    last = sum(
        max(passes[Kind.B] + within[s, Kind.B] - on_link[s, Kind.B], 0.0)
        for s, passes in step.compute.items()
    )
    clock = -last
    for sum_ in sums:
        is_early = sum_.what == "gradients"
        done += sum_.numbers * is_early
        is_hidden = is_early and (hides_sums or times.is_between_nodes(sum_))
        ready = last * (done / numbers - 1) if is_hidden else 0.0
        clock = max(clock, ready) + times.seconds(sum_)
    return gathers + max(clock, 0.0)


def _exposed_averages(rank: RankStep, config: Config, costs: CostModel, alone: float) -> float:
    """The seconds in a step of exchanges of replicas that no step hides; a step takes `alone`
    seconds besides.

    Between nodes, a fragment travels during the steps until it is applied, before another is sent.
    """
    exposed, times = 0.0, costs.exchanges
    for e in rank.exchanges["averages"]:
        seconds, hidden = times.seconds(e), 0.0
        is_hidden = hides(costs.machine, "dp") or times.is_between_nodes(e)
        if e.what == "parameters" and is_hidden:
            hidden = e.times * config.apply_after * alone / e.every
        exposed += seconds - min(seconds, hidden)
    return exposed

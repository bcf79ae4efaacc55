"""Predicts how long a step takes on a machine, by simulating with a clock
(`simulator/clock.py`) the lists of operations that ranks carry out. Its terms add up to the time:

compute    passes of the rank along pp that computes longest, over all micro-batches
tensor     exchanges of that rank within these passes: along tp and cp, batch statistics
bubble     idle time of the rank whose gradients are summed last
sums       sums of gradients, and ZeRO 3's gathers of parameters, as far as passes do not hide them;
           and exchanges of replicas that average their parameters
packing    array functions that pack messages and unpack them: codes of --compress; copies of
           parameters, their mean and an outer step
update     the optimizer, agreement of ranks, and gathers of parameters after the update
other      batches, losses, Python; a rank along pp takes as large a share of the time per
           micro-batch as it has of the units

F, I and W are the forward pass of a unit, and its gradients of the input and of the weights; m is
the number of micro-batches, p that of ranks, n that of bytes:

    compute   m sum(F + I + W), and F twice with --recompute; F, I, W are measured, or samples x
              share x multiplications / speed
    bubble    end of the last backward pass - compute - tensor: for 1f1b with equal stages
              (p - 1) (F + B)
    sums      end of the rank's gradient sums - end of its last backward pass; exchanges of
              replicas once in H steps count 1 / H
    packing   bytes x seconds per byte + elements x seconds per element of a codec
    update    elements x seconds per element, by optimizer, and exchanges
    message   alpha + n beta, of a node or between nodes
    ring      2 (p - 1) (alpha + n beta s / p) + (p - 1) gamma n / p over nodes, where s groups
              share the link of a node; half of it for a scatter or a gather, where only the
              scatter adds
    node      a measured curve: bytes to seconds, by algorithm and number of ranks
    gossip    alpha + k n beta s, where k messages share the busiest link"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np

from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.list_times import ListTimes, PassTimes, hides
from nnmpi.addons.planning.machine import Machine
from nnmpi.addons.planning.paper.rank import step
from nnmpi.addons.planning.rank_costs import CostModel, RankCosts, exposed_in_passes, rank_costs
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.addons.planning.waits import waits
from nnmpi.addons.simulator.pipeline import Costs, run, stage_times
from nnmpi.options.collector import gc_paused
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import Kind, Op


class StepTime(NamedTuple):
    """The predicted seconds of a step, as a sum of the terms that the module's docstring
    defines."""

    compute: float
    tensor: float
    bubble: float
    sums: float
    packing: float
    update: float
    other: float

    @property
    def seconds(self) -> float:
        """The predicted seconds of the whole step, the sum of all terms."""
        return sum(self)


class StepModel(NamedTuple):
    """The predicted time of a step, and the figures from which it was computed.

    ranks     those along pp that are last along dp, cp and tp: they have the most work, so others
              wait; of these are `busiest`, `last` (to sum gradients), `updated`, `averaged`
    micro     the samples of each micro-batch of these ranks
    lists     for each rank, an object that gives the seconds of the operations in its step
    """

    time: StepTime
    ranks: Sequence[RankCosts]
    micro: Sequence[int]
    busiest: RankCosts
    last: RankCosts
    updated: RankCosts
    averaged: RankCosts
    lists: Sequence[ListTimes]


def step_time(a: Arrangement, costs: CostModel) -> StepTime:
    """Predicts the seconds of a step over one batch."""
    return step_model(a, costs).time


@gc_paused()
def step_model(a: Arrangement, costs: CostModel) -> StepModel:
    """Predicts a step's time, with the figures from which it is computed."""
    times, on_paper = costs.exchanges, a.mesh.group(a.mesh.size - 1, "pp")
    micro = micro_batches(a, on_paper[0], a.config.batch_size)
    of_units = costs.model.of(a.sharding, a.config, max(micro))
    compute_of = passes_of_stages(costs.model, of_units, [nodes.start for nodes in a.stages])
    ranks = [rank_costs(a, rank, len(micro), compute_of, costs) for rank in on_paper]
    seconds = _PassSeconds(
        dict(chain.from_iterable(item.compute.items() for item in ranks)),
        dict(chain.from_iterable(exposed_in_passes(item, costs).items() for item in ranks)),
    )
    passes = seconds.of_stages()
    links = _message_seconds(ranks, len(micro), times)
    computed = [item.stages.passes for item in ranks]
    all_busy = [sum(passes[op.stage].get(op.kind, 0.0) for op in of_rank) for of_rank in computed]
    ends, idle = _ends_and_idle([item.stages for item in ranks], Costs(passes, links=links))
    passes_of = {(s, kind): t for s, of in enumerate(passes) for kind, t in of.items()}
    lists = [
        _list_times(a, rank, item, passes_of, links, of_units, costs)
        for rank, item in zip(on_paper, ranks, strict=True)
    ]
    ranks = [item._replace(waits=waits(own)) for item, own in zip(ranks, lists, strict=True)]
    sums = [item.waits.sums for item in ranks]
    done = [end + after for end, after in zip(ends, sums, strict=True)]
    last, busiest = (max(range(len(ranks)), key=of.__getitem__) for of in (done, all_busy))
    # the terms have to add up, so the bubble is what the last rank takes longer than the busiest;
    # no term is a difference of equal sums, which would leave their rounding
    bubble = idle[last] + (all_busy[last] - all_busy[busiest])
    all_units = len(micro) * sum(t[Kind.F] + t[Kind.B] for t in seconds.compute.values())
    most = max(seconds.computing(ops) for ops in computed)
    share = most / all_units if len(ranks) > 1 and all_units else 1.0
    updated = max(ranks, key=lambda item: item.update(a, costs))
    averaged = max(ranks, key=lambda item: times.total(item.exchanges["averages"]))
    time = StepTime(
        compute=seconds.computing(computed[busiest]),
        tensor=seconds.exchanging(computed[busiest]),
        bubble=max(bubble, 0.0),
        sums=max(sums[last] + min(bubble, 0.0), 0.0),
        packing=max(item.packing(a, costs) for item in ranks),
        update=updated.update(a, costs),
        other=costs.machine.step
        + share * len(micro) * costs.machine.micro_batch
        + host_seconds(a, costs.machine, len(micro)),
    )
    averages = _exposed_averages(averaged, a, costs, time.seconds)
    time = time._replace(sums=time.sums + averages)
    of_terms = ranks[busiest], ranks[last], updated, averaged
    return StepModel(time, ranks, micro, *of_terms, lists)


class _PassSeconds(NamedTuple):
    """The seconds of the passes of stages over a micro-batch.

    compute   a dict: stage -> the seconds of each kind of pass
    exchange  a dict: (stage, kind of pass) -> by how much exchanges make the pass longer
    """

    compute: Mapping[int, Mapping[Kind, float]]
    exchange: Mapping[tuple[int, Kind], float]

    def of_stages(self) -> list[Mapping[Kind, float]]:
        """Returns, for each stage, the seconds of each kind of pass with its exchanges."""
        return [
            {kind: t + self.exchange.get((s, kind), 0.0) for kind, t in self.compute[s].items()}
            for s in range(len(self.compute))
        ]

    def computing(self, ops: Iterable[Op]) -> float:
        """Returns the seconds in which the passes `ops` compute."""
        return sum(self.compute[op.stage].get(op.kind, 0.0) for op in ops)

    def exchanging(self, ops: Iterable[Op]) -> float:
        """Returns the seconds by which exchanges make the passes `ops` longer."""
        return sum(self.exchange.get((op.stage, op.kind), 0.0) for op in ops)


def _message_seconds(
    ranks: Sequence[RankCosts], micro: int, times: ExchangeTimes
) -> Mapping[tuple[Kind, int], float]:
    """Returns the seconds of each message between stages, by kind and sender."""
    seconds = defaultdict[tuple[Kind, int], float](float)
    for item in chain.from_iterable(rank.exchanges["messages"] for rank in ranks):
        seconds[item.during, item.stage] += times.seconds(item) / micro
    return seconds


def _ends_and_idle(lists: Sequence[StepList], costs: Costs) -> tuple[list[float], list[float]]:
    """Simulates ranks that carry out `lists`; returns, for each rank, when its last pass ends, and
    how long it has waited for others until then."""
    ends, idle = [0.0] * len(lists), [0.0] * len(lists)
    for span in run(lists, costs):
        idle[span.rank] += span.start - ends[span.rank]
        ends[span.rank] = span.end
    return ends, idle


def host_seconds(a: Arrangement, machine: Machine, count: int) -> float:
    """Returns the seconds in which a device waits for the host; 0 for a measured machine."""
    if machine.sheet is None:
        return 0.0
    parameters = max(len(a.model_on(rank).trained) for rank in a.mesh.group(0, "pp"))
    return count * machine.sheet.of_micro_batch + parameters * machine.sheet.of_parameter


def stage_passes(units: np.ndarray, is_first: bool) -> dict[Kind, float]:
    """Returns the seconds of each kind of pass of a stage, given those of its units. The first
    stage needs no gradient of its input: its I takes no time, and W does the work of both."""
    f, i, w = units.sum(axis=0).tolist()
    return stage_times(f, 0.0, i + w) if is_first else stage_times(f, i, w)


def passes_of_stages(
    model: ModelTimes, of_units: np.ndarray, begins: Sequence[int]
) -> list[Mapping[Kind, float]]:
    """Returns the seconds of each kind of pass of each stage; `begins` has their first graph
    nodes."""
    starts = [unit.nodes.start for unit in model.units]
    firsts = [bisect_left(starts, begin) for begin in begins]
    parts = (of_units[a:b] for a, b in pairwise([*firsts, len(starts)]))
    return [stage_passes(part, is_first=s == 0) for s, part in enumerate(parts)]


def _list_times(
    a: Arrangement,
    rank: int,
    item: RankCosts,
    passes: Mapping[tuple[int, Kind], float],
    links: Mapping[tuple[Kind, int], float],
    of_units: np.ndarray,
    costs: CostModel,
) -> ListTimes:
    """Returns the seconds of operations, given those of passes, messages (`links`) and units."""
    by_op = step(a, rank, a.config.batch_size).by_op
    on_link = item.within_passes(costs.exchanges.between_nodes)
    times = PassTimes(passes, on_link, of_units, costs.model.units)
    update = item.optimizer(a, costs)
    return ListTimes(a, rank, by_op, times, links, update, costs.exchanges, costs.machine)


def _exposed_averages(rank: RankCosts, a: Arrangement, costs: CostModel, alone: float) -> float:
    """Returns the seconds by which averages of parameters every few steps make a step longer, on
    average; `alone` is the seconds of a step without them.

    Between nodes, a fragment (layers that are averaged together) is sent while the next steps run,
    until the step in which its averages are applied; the next fragment is sent after that.
    """
    exposed, times, averages = 0.0, costs.exchanges, a.strategy.averages
    delay = averages.delay(a.config) if averages else 0
    for e in rank.exchanges["averages"]:
        seconds, hidden = times.seconds(e), 0.0
        is_hidden = hides(costs.machine, "dp") or times.is_between_nodes(e)
        if e.what == "parameters" and is_hidden:
            hidden = e.times * delay * alone / e.every
        exposed += seconds - min(seconds, hidden)
    return exposed

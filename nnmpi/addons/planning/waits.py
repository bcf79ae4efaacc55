"""Computes how long a rank waits for sums of gradients and gathers of parameters, by walking its
list with a clock. Messages from other stages arrive at once here: `step_time` simulates
pipelines."""

from dataclasses import replace
from typing import NamedTuple

from nnmpi.addons.planning.list_times import ListTimes
from nnmpi.addons.planning.paper.rank import few_micro_batches
from nnmpi.addons.simulator.clock import carried_out
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cached import cached
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step_list.chain import gathers_for_use
from nnmpi.parallel.step_list.step import step_list
from nnmpi.schedules.lists.step_list import StepList
from nnmpi.schedules.op import PASSES, Kind


class Waits(NamedTuple):
    """The seconds in one step in which a rank waits for communication that its passes do not hide.

    sums     for sums of gradients and gathers of parameters before the update
    update   for gathers of the updated parameters, after the update (ZeRO 1 and 2)
    """

    sums: float = 0.0
    update: float = 0.0


def waits(times: ListTimes) -> Waits:
    """Returns for how long a rank waits for communication in a step over one batch (see Waits)."""
    a = times.a
    sizes = micro_batches(a, times.rank, a.config.batch_size)
    few, period = few_micro_batches(a, sizes)
    if few + period >= len(sizes):
        return _of_list(times, len(sizes))
    first, second = (_of_list(times, n) for n in (few, few + period))
    periods = (len(sizes) - few) // period
    return Waits(*(x + periods * (y - x) for x, y in zip(first, second, strict=True)))


def _of_list(times: ListTimes, micro: int) -> Waits:
    """Returns for how long a rank waits in a step up to its last sum over replicas. With ZeRO 1 and
    2, the wait for gathers is the time by which they make the step longer."""
    step = _until_summed(times.a, times.rank, micro)
    end, computing = _walked(times, step)
    if times.a.store.zero and not gathers_for_use(times.a):
        ops = tuple(op for op in step.ops if op.kind not in (Kind.GATHER, Kind.WAIT))
        summed, _ = _walked(times, replace(step, ops=ops, begins=()))
        return Waits(max(summed - computing, 0.0), max(end - summed, 0.0))
    return Waits(max(end - computing, 0.0))


def _walked(times: ListTimes, step: StepList) -> tuple[float, float]:
    """Simulates a rank's list; returns the seconds until its end, and those of passes."""
    computing, clock = 0.0, 0.0
    for _, op, cost, _, ended in carried_out([step], lambda _, op: times.cost(op)):
        if cost.lane is None:
            computing += cost.seconds * (op.kind in PASSES)
            clock = ended
    return clock, computing


@cached
def _until_summed(a: Arrangement, rank: int, micro: int) -> StepList:
    """Returns a rank's list in a step up to the last sum over replicas."""
    step = step_list(a, rank, micro)
    return replace(step, ops=step.ops[: step.ops.index(step.ends[0])])

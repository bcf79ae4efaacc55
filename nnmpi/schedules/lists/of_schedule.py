"""Lists of the ranks of a pipeline that follows a schedule: each whole stage is one unit, and sums
of gradients are left out. The simulator and predictions of time and memory use them."""

from collections.abc import Sequence

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.step_list import UPDATE, StepList, lowered
from nnmpi.schedules.lists.stream import window
from nnmpi.schedules.op import Op
from nnmpi.schedules.pipeline import Schedule
from nnmpi.schedules.placement import Place


def lists(
    schedule: Schedule, p: int, m: int, v: int = 1, recompute: bool = False
) -> list[StepList]:
    """Returns the list of each of p ranks, for m micro-batches and v stages per rank; raises
    ValueError if the schedule does not allow these numbers.

    recompute   a backward pass repeats its forward pass first, unless that came just before
    """
    schedule.check(p, m, v)
    place = schedule.place(p, v)
    if schedule.update_each:
        return [window(Chain.of_whole_stages(place, rank), m, recompute) for rank in range(p)]
    return of_passes(schedule.compute(p, m, v), place, m, recompute)


def of_passes(
    compute: Sequence[Sequence[Op]], place: Place, m: int, recompute: bool = False
) -> list[StepList]:
    """Returns the list of each rank, given its passes of whole stages for m micro-batches
    (`compute`), and the rank of each stage (`place`)."""
    steps = list[StepList]()
    for rank, of_stages in enumerate(compute):
        chain = Chain.of_whole_stages(place, rank)
        passes, ops = lowered(of_stages, chain, recompute)
        steps.append(StepList(chain, passes, m, (*ops, *UPDATE)))
    return steps

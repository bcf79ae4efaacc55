"""Lists of the ranks of a pipeline that follows a schedule: each whole stage is one unit, and sums
of gradients are left out. The simulator and predictions of time and memory use them."""

from collections.abc import Sequence

from nnmpi.schedules.lists.chain import Chain
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import UPDATE, ScheduleError, StepList, lowered
from nnmpi.schedules.lists.stream import window
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import Schedule
from nnmpi.schedules.placement import Place, stages_of

OF_SCHEDULES = Kind.F, Kind.B, Kind.I, Kind.W
"""The kinds of passes that a schedule orders."""


def lists(
    schedule: Schedule, p: int, m: int, v: int = 1, recompute: bool = False
) -> list[StepList]:
    """Returns the list (passes, messages and updates in order) of each of p ranks, for m
    micro-batches and v stages per rank.

    Raises ValueError if the schedule does not allow these numbers.

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


def prove_passes(compute: Sequence[Sequence[Op]], place: Place, m: int) -> None:
    """Raises ScheduleError unless the ranks can carry out a step of m micro-batches with these
    passes of whole stages, in which all of them are complete. `place` is the rank of each stage."""
    if len(compute) != len({*place}):
        raise ScheduleError(f"stages are on {len({*place})} ranks, passes on {len(compute)}")
    for r, passes in enumerate(compute):
        for op in passes:
            if op.kind not in OF_SCHEDULES:
                raise ScheduleError(f"rank {r} cannot run {op}: no schedule has such an operation")
            if op.stage not in stages_of(place, r) or op.micro not in range(m):
                raise ScheduleError(
                    f"rank {r} cannot run {op} of stage {op.stage}: it has no such stage, or there "
                    "is no such micro-batch"
                )
    prove([[step] for step in of_passes(compute, place, m)])

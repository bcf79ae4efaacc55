"""Proves that the lists of all ranks are correct; raises ScheduleError at the first operation
that is not.

passes       they are those of the schedule, in its order, and complete; before each one, the
             previous unit has run, or its message has been received
values       when a pass runs, its buckets of parameters are in memory, gathered since the last
             update
gradients    each pass adds to buckets that are open; a bucket is summed once, after the last pass
             that adds to it, and only then its memory is used for another bucket
strategy     operations that only one strategy has (such as reads from disk) pass its own check
update       it follows all sums; after it, the list starts the gathers with which the next begins
messages     sends and receives are in one order at both ends of a boundary between stages
collectives  ranks with the same parameters start the same ones in the same order
deadlock     if all ranks run their lists together, none waits forever"""

from collections import defaultdict
from collections.abc import Sequence

from nnmpi.schedules.lists.race import Race
from nnmpi.schedules.lists.step_list import ScheduleError, StepList
from nnmpi.schedules.lists.walk import Walk
from nnmpi.schedules.op import COLLECTIVES, RECEIVES, SENDS, Kind


def prove(groups: Sequence[Sequence[StepList]]) -> None:
    """Checks the lists of all ranks; raises ScheduleError for the first operation that is wrong.
    groups[p] has those with coordinate p along pp, one for each rank along dp."""
    for place, replicas in enumerate(groups):
        for step in replicas:
            Walk(step, f"pp {place}").run()
        _same_order(replicas, place)
    for row in zip(*groups, strict=True):
        _same_messages(row)
    Race(groups).run()


def _same_order(replicas: Sequence[StepList], place: int) -> None:
    """Raises ScheduleError unless the replicas start the same collectives in the same order;
    gathers are compared separately from sums, since they have their own communicator."""
    for kinds in (COLLECTIVES - {Kind.GATHER}, {Kind.GATHER}):
        orders = {tuple(op for op in step.ops if op.kind in kinds) for step in replicas}
        if len(orders) > 1:
            names = ", ".join(sorted(kind.value for kind in kinds))
            raise ScheduleError(f"pp {place}: ranks along dp differ in the order of {names}")


def _same_messages(row: Sequence[StepList]) -> None:
    """Raises ScheduleError unless the two ranks at each boundary between stages send and receive
    messages in the same order. `row` has the lists of the ranks of one pipeline."""
    sent, received = (defaultdict[tuple[str, int], list[int]](list) for _ in range(2))
    for step in row:
        for op in step.ops:
            if op.kind in SENDS | RECEIVES:
                ends = sent if op.kind in SENDS else received
                ends[op.kind.value[-1], op.at].append(op.micro)
    for (way, boundary), micros in {**received, **sent}.items():
        if sent[way, boundary] != received[way, boundary]:
            raise ScheduleError(
                f"{way} at boundary {boundary}: sent are {micros}, received "
                f"{received[way, boundary]}"
            )

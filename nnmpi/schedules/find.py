"""Finds a schedule by name: one of nnmpi, or the user's at `package.module:NAME`."""

from nnmpi.options import user_code
from nnmpi.options.quoting import quoted
from nnmpi.schedules.pipeline import SCHEDULES, Schedule


def find(name: str) -> Schedule:
    """Returns the schedule with this name in SCHEDULES, or the user's at `package.module:NAME`."""
    return SCHEDULES[name] if name in SCHEDULES else _of_user(name)


def _of_user(name: str) -> Schedule:
    """Returns the user's schedule at `package.module:NAME`. What its functions return is
    checked, and passes are proved, for the given numbers of ranks, micro-batches and stages."""
    if not user_code.is_named(name):
        names = ", ".join(SCHEDULES)
        raise ValueError(f"schedule {quoted(name)} is not one of {names} or package.module:NAME")
    schedule = user_code.imported(name, "schedule")
    if not isinstance(schedule, Schedule) or schedule.update_each:
        raise ValueError(
            f"schedule {quoted(name)} must be a Schedule of nnmpi.schedules.pipeline, without "
            f"update_each; it is of type {type(schedule).__name__}"
        )
    if not isinstance(schedule.stages, int) or schedule.stages < 1:
        raise ValueError(
            f"schedule {quoted(name)} must have an integer from 1 as its stages a rank, not "
            f"{quoted(schedule.stages)}"
        )
    # here, since schedules of nnmpi are proved in tests
    from nnmpi.schedules.lists.of_user import Checked

    checked = Checked(name, schedule)
    return schedule._replace(place=checked.place, compute=checked.compute, bubble=checked.bubble)

"""Finds a schedule by name: one of nnmpi, or the user's at `package.module:NAME`."""

from nnmpi.options import user_code
from nnmpi.options.quoting import quoted
from nnmpi.schedules.op import Op
from nnmpi.schedules.pipeline import SCHEDULES, Schedule


def find(name: str) -> Schedule:
    """Returns the schedule with this name in SCHEDULES, or the user's at `package.module:NAME`."""
    return SCHEDULES[name] if name in SCHEDULES else _of_user(name)


def _of_user(name: str) -> Schedule:
    """Returns the user's schedule at `package.module:NAME`. It is proved whenever its passes are
    computed, for the given numbers of ranks, micro-batches and stages."""
    if not user_code.is_named(name):
        names = ", ".join(SCHEDULES)
        raise ValueError(f"schedule {quoted(name)} is not one of {names} or package.module:NAME")
    schedule = user_code.imported(name, "schedule")
    if not isinstance(schedule, Schedule) or schedule.update_each:
        raise ValueError(
            f"schedule {quoted(name)} must be a Schedule of nnmpi.schedules.pipeline, without "
            f"update_each; it is of type {type(schedule).__name__}"
        )

    def proved(p: int, m: int, v: int) -> list[list[Op]]:
        # here, since schedules of nnmpi are proved in tests
        from nnmpi.schedules.lists.of_schedule import prove_passes
        from nnmpi.schedules.lists.step_list import ScheduleError

        try:
            compute = schedule.compute(p, m, v)
            prove_passes(compute, schedule.place(p, v), m)
            return compute
        except Exception as error:
            reason = error if isinstance(error, ScheduleError) else user_code.reason_of(error)
            raise ValueError(
                f"schedule {quoted(name)} of {p} ranks, {m} micro-batches and {v} stages a rank: "
                f"{reason}"
            ) from error

    return schedule._replace(compute=proved)

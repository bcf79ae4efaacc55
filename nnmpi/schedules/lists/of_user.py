"""Checks what the functions of a user's schedule return."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import product
from typing import Any, NamedTuple, SupportsIndex

from nnmpi.options.quoting import quoted, shown
from nnmpi.options.user_code import reason_of
from nnmpi.schedules.lists.of_schedule import of_passes
from nnmpi.schedules.lists.proof import prove
from nnmpi.schedules.lists.step_list import ScheduleError
from nnmpi.schedules.op import Kind, Op
from nnmpi.schedules.pipeline import Schedule
from nnmpi.schedules.placement import Place, stages_of

OF_SCHEDULES = Kind.F, Kind.B, Kind.I, Kind.W
"""The kinds of passes that a schedule orders."""

WHOLE = "F B", "F I W"
"""The passes of a micro-batch through a stage, in order: the backward pass may be in two halves."""

CHANGE = (
    "put the passes in another order (F1.0 is the pass F of micro-batch 0 through the second stage "
    "of its rank)"
)
"""The remedy for passes that are complete, but cannot be carried out."""

MOST_SHOWN = 80  # characters of a value in an error


class Checked(NamedTuple):
    """A user's functions, checked: they raise ValueError with the schedule's name."""

    name: str
    schedule: Schedule

    def place(self, p: int, v: int) -> tuple[int, ...]:
        """Returns the rank of each stage."""
        with self._named(f"{p} ranks and {v} stages a rank"):
            place = _called("place(p, v)", self.schedule.place, p, v)
            if not isinstance(place, list | tuple) or not _are_integers(place):
                raise ScheduleError(
                    f"place must return a tuple with the number of the rank of each of the {p * v} "
                    f"stages; it returned {_short(place)}"
                )
            return (*map(int, place),)  # of NumPy, or True and False

    def compute(self, p: int, m: int, v: int) -> list[list[Op]]:
        """Returns the passes of each rank, which are proved for these numbers."""
        place = self.place(p, v)
        with self._named(_sizes(p, m, v)):
            passes: list[list[Op]] = _called("compute(p, m, v)", self.schedule.compute, p, m, v)
            prove_passes(passes, place, m)
            return passes

    def bubble(self, p: int, m: int, v: int) -> Fraction | None:
        """Returns the bubble by the formula of the schedule, None if it has none."""
        with self._named(_sizes(p, m, v)):
            bubble: Fraction | None = _called("bubble(p, m, v)", self.schedule.bubble, p, m, v)
            if bubble is not None and not isinstance(bubble, Fraction | float | int):
                raise ScheduleError(
                    "bubble must return a Fraction, or None without a formula; it returned "
                    f"{_short(bubble)}"
                )
            return bubble

    @contextmanager
    def _named(self, sizes: str) -> Iterator[None]:
        """Adds the name of the schedule, and for which sizes it was asked, to an error."""
        try:
            yield
        except ScheduleError as error:
            raise ValueError(f"schedule {quoted(self.name)} of {sizes}: {error}") from error


def _called(call: str, function: Callable[..., Any], *numbers: int) -> Any:
    """Returns what a function of the user returns for these numbers."""
    try:
        return function(*numbers)
    except (Exception, SystemExit) as error:  # code of users may do anything
        raise ScheduleError(f"{call} ends with {reason_of(error)}") from error


def _sizes(p: int, m: int, v: int) -> str:
    return f"{p} ranks, {m} micro-batches and {v} stages a rank"


def prove_passes(compute: Any, place: Place, m: int) -> None:
    """Raises ScheduleError unless ranks can carry out, and complete, a step of m micro-batches with
    the passes that a user's `compute(p, m, v)` has returned. `place` is the rank of each stage."""
    ranks = len({*place})
    if not isinstance(compute, list | tuple) or len(compute) != ranks:
        raise ScheduleError(
            f"compute must return a list of {ranks} lists, the passes of each rank; it returned "
            f"{_short(compute)}"
        )
    for r, passes in enumerate(compute):
        _check_rank(passes, r, stages_of(place, r), m)
    try:
        prove([[step] for step in of_passes(compute, place, m)])
    except ScheduleError as error:
        raise ScheduleError(f"{error}; {CHANGE}") from error


def _check_rank(passes: Any, r: int, stages: Sequence[int], m: int) -> None:
    """Raises ScheduleError unless rank r passes each micro-batch once, both ways."""
    if not isinstance(passes, list | tuple):
        raise ScheduleError(
            f"the passes of rank {r} must be a list of Op; they are {_short(passes)}"
        )
    kinds = defaultdict[tuple[int, int], list[str]](list)
    for k, op in enumerate(passes):
        _check_pass(op, k, r, stages, m)
        kinds[op.micro, op.stage].append(op.kind.value)
    for micro, stage in product(range(m), stages):
        if (made := " ".join(kinds[micro, stage])) not in WHOLE:
            raise ScheduleError(
                f"rank {r} must run micro-batch {micro} through stage {stage} in the passes "
                f"{' or '.join(WHOLE)}; {f'it runs {made}' if made else 'these are missing'}"
            )


def _check_pass(op: Any, k: int, r: int, stages: Sequence[int], m: int) -> None:
    """Raises ScheduleError unless `op`, which is pass k of rank r, is one of its stages."""
    if not isinstance(op, Op) or not _are_integers(op[1:3]):
        raise ScheduleError(
            f"pass {k} of rank {r} must be an Op(kind, micro-batch, stage) with two integers; it "
            f"is {_short(op)}"
        )
    if op.kind not in OF_SCHEDULES:
        raise ScheduleError(
            f"pass {k} of rank {r} must have the kind Kind.F, Kind.B, Kind.I or Kind.W; it has "
            f"{_short(op.kind)}"
        )
    if op.stage not in stages or op.micro not in range(m):
        raise ScheduleError(
            f"rank {r} cannot run {op} of stage {op.stage}: the stages of this rank are "
            f"{', '.join(map(str, stages))}, the micro-batches 0 to {m - 1}"
        )


def _are_integers(numbers: Sequence[Any]) -> bool:
    return all(isinstance(number, SupportsIndex) for number in numbers)


def _short(value: Any) -> str:
    """Returns a value for a message: its repr, or the length of a long list or tuple."""
    text = repr(value)
    if type(value) in (list, tuple) and len(text) > MOST_SHOWN:
        return f"a {type(value).__name__} of length {len(value)}"
    return shown(text, MOST_SHOWN)

"""The log of calls on arrays without data: a computation as a list of calls, to be executed later.

While `call_log` holds a list, each function that would read or write an array without data appends
a call. An array that NumPy would allocate for the result is an argument of the call, without data;
`memory_plan.py` gives it memory. Views append nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np


class Call(NamedTuple):
    """A logged call, function(*args, **options); a check writes nothing, but may raise an error."""

    function: Callable[..., object]
    args: Sequence[Any]
    options: Mapping[str, Any] = {}
    is_check: bool = False


class UnlikeError(Exception):
    """Raised on values for which the program would have made other calls."""


call_log: ContextVar[list[Call] | None] = ContextVar("call_log", default=None)
"""The list to which calls on arrays without data are appended; None if calls are not logged."""


@contextmanager
def logged_calls() -> Iterator[list[Call]]:
    """A context in which calls on arrays without data are appended to the list that it yields."""
    calls = list[Call]()
    token = call_log.set(calls)
    try:
        yield calls
    finally:
        call_log.reset(token)


def log_call(function: Callable[..., object], *args: Any, **options: Any) -> None:
    """Logs the call function(*args, **options), to be executed later."""
    if (calls := call_log.get()) is not None:
        calls.append(Call(function, args, options))


def log_check(function: Callable[..., object], *args: Any) -> None:
    """Logs, if calls are being logged, function(*args) as a check: it raises an error, when the log
    is executed, if values differ from those that it was logged for."""
    if (calls := call_log.get()) is not None:
        calls.append(Call(function, args, is_check=True))


def refused() -> None:
    """Stands in a log for an operation that needs values: such a log cannot be executed."""


def assign(out: Any, value: Any) -> None:
    """Writes `value` into `out`, converted to its type."""
    np.copyto(out, value, "unsafe")


def assign_result(out: Any, function: Callable[..., Any], /, *args: Any, **options: Any) -> None:
    """Writes function(*args) into the array `out`, for functions without an `out` argument."""
    out[...] = function(*args, **options)


def arrays_in(value: Any) -> Iterator[np.ndarray]:
    """Yields the arrays in an argument: the argument itself, or arrays in a tuple, list or dict."""
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from arrays_in(item)
    elif isinstance(value, dict):
        yield from arrays_in([*value.values()])


def touched_bytes(calls: Iterable[Call]) -> int:
    """Returns the bytes of the arrays that calls read and write. Arrays filled with a number do not
    count, since the system provides most of them (as zeros)."""
    moving = (c for c in calls if c.function is not assign or isinstance(c.args[1], np.ndarray))
    return sum(a.nbytes for call in moving for a in arrays_in((call.args, call.options)))

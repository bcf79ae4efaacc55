"""cached: results that many ranks have in common are computed once for an arrangement."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class HasCache(Protocol):
    """An object, such as an arrangement, that keeps results of `cached` functions."""

    @property
    def cache(self) -> dict[Any, Any]:
        """The results, by function and arguments."""


A = TypeVar("A", bound=HasCache)
P = ParamSpec("P")
R = TypeVar("R")


def cached(function: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], R]:
    """Decorates a function of an arrangement so that it runs once for equal arguments; many ranks
    ask for the same results."""

    @wraps(function)
    def wrapper(a: A, /, *args: P.args, **named: P.kwargs) -> R:
        key = function, args, *named.items()
        if key not in a.cache:
            a.cache[key] = function(a, *args, **named)
        result: R = a.cache[key]
        return result

    return wrapper


@contextmanager
def gc_paused() -> Iterator[None]:
    """A context in which the garbage collector does not look for cycles: steps on paper create few,
    and it would scan all cached results again and again.

    The setting is global in the process. If ranks are threads, the first one to leave the context
    ends it, which costs the others time only.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if not gc.get_freeze_count():  # else a user has frozen objects, which are to stay so
            gc.freeze()
            gc.unfreeze()  # all objects are in the oldest generation now, which is scanned last
        if was_enabled:
            gc.enable()

"""cached: prices that many ranks have in common are found once for an arrangement."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class HasCache(Protocol):
    """An arrangement, which keeps prices."""

    @property
    def cache(self) -> dict[Any, Any]:
        """By function and arguments."""


A = TypeVar("A", bound=HasCache)
P = ParamSpec("P")
R = TypeVar("R")


def cached(function: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], R]:
    """A function of an arrangement that is carried out once for the same arguments: prices depend
    on the kind of a rank and on what it computes, and many ranks have the same."""

    @wraps(function)
    def found(a: A, /, *args: P.args, **named: P.kwargs) -> R:
        key = function, args, *named.items()
        if key not in a.cache:
            a.cache[key] = function(a, *args, **named)
        price: R = a.cache[key]
        return price

    return found


@contextmanager
def gc_paused() -> Iterator[None]:
    """A context in which no cycles of objects are looked for: those of steps on paper are few, and
    all prices that are kept would be walked through again and again. It holds for the process: of
    ranks that are threads the first one to leave ends it, which costs the others time alone."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()  # what was made meanwhile is old now: it is not walked through at once
        if was_enabled:
            gc.enable()

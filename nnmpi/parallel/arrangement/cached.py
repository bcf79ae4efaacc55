"""cached: a decorator by which many ranks share results on an arrangement."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar


class HasCache(Protocol):
    """An object, such as an arrangement, that stores the results of `cached` functions."""

    @property
    def cache(self) -> dict[Any, Any]:
        """The results of `cached` functions, by function and arguments."""


A = TypeVar("A", bound=HasCache)
P = ParamSpec("P")
R = TypeVar("R")


def cached(function: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[A, P], R]:
    """Makes a function of an arrangement keep results there: it runs once for equal arguments."""

    @wraps(function)
    def wrapper(a: A, /, *args: P.args, **named: P.kwargs) -> R:
        key = function, args, *named.items()
        if key not in a.cache:
            a.cache[key] = function(a, *args, **named)
        result: R = a.cache[key]
        return result

    return wrapper

"""remembered: prices that many ranks have in common are found once for an arrangement."""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from nnmpi.parallel.arrangement.arrangement import Arrangement

P = ParamSpec("P")
R = TypeVar("R")


def remembered(
    function: Callable[Concatenate["Arrangement", P], R],
) -> Callable[Concatenate["Arrangement", P], R]:
    """A function of an arrangement that is carried out once for the same arguments: prices depend
    on the kind of a rank and on what it computes, and many ranks have the same."""

    @wraps(function)
    def found(a: "Arrangement", /, *args: P.args, **named: P.kwargs) -> R:
        key = function, args
        if key not in a.prices:
            a.prices[key] = function(a, *args, **named)
        price: R = a.prices[key]
        return price

    return found

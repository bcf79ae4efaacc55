"""Ops whose values are booleans or indices; they have no gradient, and so no vjps."""

from collections.abc import Callable

from nnmpi.autograd.ops.elementwise import broadcasting
from nnmpi.autograd.ops.reduce import Dims, check_not_empty, existing
from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result


def _comparison(name: str) -> Callable[[Array, Array], Result]:
    """NumPy's comparison of this name, elementwise."""

    def compare(a: Array, b: Array) -> Result:
        return Result(broadcasting(name, a, b), ())

    compare.__name__ = name
    return compare


equal = _comparison("equal")
not_equal = _comparison("not_equal")
less = _comparison("less")
less_equal = _comparison("less_equal")
greater = _comparison("greater")
greater_equal = _comparison("greater_equal")


def _bitwise(name: str, symbol: str) -> Callable[[Array, Array], Result]:
    """NumPy's operation of this name on booleans, or on the bits of integers."""

    def combine(a: Array, b: Array) -> Result:
        for v in (a, b):
            _check_bits(symbol, v)
        return Result(broadcasting(name, a, b), ())

    combine.__name__ = name
    return combine


bitwise_and = _bitwise("bitwise_and", "&")
bitwise_or = _bitwise("bitwise_or", "|")
bitwise_xor = _bitwise("bitwise_xor", "^")


def invert(a: Array) -> Result:
    """Not a, of booleans; of integers, each bit."""
    _check_bits("~", a)
    return Result(~a, ())


def _check_bits(symbol: str, v: Array) -> None:
    kind = v.dtype.name if hasattr(v, "dtype") else type(v).__name__
    if "float" in kind:
        raise TypeError(
            f"{symbol} takes booleans or integers, not {kind}: compare first, "
            "as in (t > 0) & (t < 1)"
        )


def any(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """Whether an element over `axis` is not 0."""
    return Result(xp_of(a).any(a, axis=existing(axis, a), keepdims=keepdims), ())


def all(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """Whether no element over `axis` is 0."""
    return Result(xp_of(a).all(a, axis=existing(axis, a), keepdims=keepdims), ())


def argsort(a: Array, *, axis: int, descending: bool = False) -> Result:
    """The places of the elements in ascending order, equal ones and NaNs (last) in theirs."""
    xp, n = xp_of(a), a.shape[axis]
    if not descending:
        return Result(xp.argsort(a, axis=axis, kind="stable"), ())
    order = xp.argsort(xp.flip(a, axis=axis), axis=axis, kind="stable")
    return Result(n - 1 - xp.flip(order, axis=axis), ())


def argmax(a: Array, *, axis: int | None = None, keepdims: bool = False) -> Result:
    """The index of the largest element over `axis`, the first of equal ones."""
    check_not_empty("argmax", a, axis)
    return Result(xp_of(a).argmax(a, axis=axis, keepdims=keepdims), ())

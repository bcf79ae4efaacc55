"""Ops whose values are booleans or indices; they have no gradient, and therefore no vjps."""

from __future__ import annotations

from collections.abc import Callable

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import in_layout, sortable
from nnmpi.autograd.ops.elementwise import broadcasting
from nnmpi.autograd.ops.reduce import Dims, check_not_empty, existing


def _elementwise(name: str, symbol: str = "") -> Callable[[Array, Array], Result]:
    """Makes the op for NumPy's function `name`; with a `symbol` only for booleans and integers."""

    def op(a: Array, b: Array) -> Result:
        if symbol:
            _check_bits(symbol, a, b)
        return Result(broadcasting(name, a, b), ())

    op.__name__, op.__doc__ = name, f"{name} of the elements of a and b."
    return op


equal = _elementwise("equal")
not_equal = _elementwise("not_equal")
less = _elementwise("less")
less_equal = _elementwise("less_equal")
greater = _elementwise("greater")
greater_equal = _elementwise("greater_equal")
bitwise_and = _elementwise("bitwise_and", "&")
bitwise_or = _elementwise("bitwise_or", "|")
bitwise_xor = _elementwise("bitwise_xor", "^")
left_shift, right_shift = _elementwise("left_shift", "<<"), _elementwise("right_shift", ">>")


def invert(a: Array) -> Result:
    """The logical not of booleans; of integers, every bit inverted."""
    _check_bits("~", a)
    return Result(~a, ())


def _check_bits(symbol: str, *values: Array) -> None:
    for v in values:
        dtype = v.dtype.name if hasattr(v, "dtype") else type(v).__name__
        if "float" in dtype:
            raise TypeError(
                f"{symbol} takes booleans or integers, not {dtype}: compare first, "
                "as in (t > 0) & (t < 1)"
            )


def _predicate(name: str) -> Callable[[Array], Result]:
    """Makes the op for a NumPy predicate such as isnan."""

    def op(a: Array) -> Result:
        return Result(in_layout(getattr(xp_of(a), name), a), ())

    op.__name__, op.__doc__ = name, f"{name} of each element."
    return op


isnan, isinf, isfinite = _predicate("isnan"), _predicate("isinf"), _predicate("isfinite")


def any(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """True where at least one element over `axis` is not 0."""
    return _truths(xp_of(a).any(a, axis=existing(axis, a), keepdims=keepdims), a)


def all(a: Array, *, axis: Dims = None, keepdims: bool = False) -> Result:
    """True where no element over `axis` is 0."""
    return _truths(xp_of(a).all(a, axis=existing(axis, a), keepdims=keepdims), a)


def _truths(y: Array, a: Array) -> Result:
    """The result of any or all, which is uint8 for uint8, as in PyTorch."""
    return Result(y.astype(a.dtype) if a.dtype == "uint8" else y, ())


def _place(name: str, extreme: str) -> Callable[..., Result]:
    """Makes the op for NumPy's argmax or argmin; `extreme`, as "largest", is for its docstring."""

    def op(a: Array, *, axis: int | None = None, keepdims: bool = False) -> Result:
        check_not_empty(name, a, axis)
        return Result(getattr(sortable(a), name)(axis=axis, keepdims=keepdims), ())

    op.__name__ = name
    op.__doc__ = f"The index of the {extreme} element over `axis`, the first of equal ones."
    return op


argmax, argmin = _place("argmax", "largest"), _place("argmin", "smallest")

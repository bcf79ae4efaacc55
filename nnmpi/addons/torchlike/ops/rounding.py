"""Ops that round, and the sign: their values are constant between jumps, and their gradients 0."""

from __future__ import annotations

from collections.abc import Callable

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import in_layout


def _step(name: str) -> Callable[[Array], Result]:
    """The op for a rounding function of NumPy such as floor; it copies integers unchanged."""

    def op(a: Array) -> Result:
        is_whole = a.dtype.kind in "biu"
        y = a.copy("K") if is_whole else in_layout(getattr(xp_of(a), name), a)
        return Result(y, (lambda g, out: xp_of(g).zeros_like(g),))

    op.__name__, op.__doc__ = name, f"{name} of each element; the gradient is 0."
    return op


floor, ceil, trunc, rint = _step("floor"), _step("ceil"), _step("trunc"), _step("rint")


def sign(a: Array) -> Result:
    """-1, 0 or 1, and 0 for NaN; booleans stay as they are. The gradient is 0."""

    def value(a: Array) -> Array:
        positive = (a > 0).astype(a.dtype)
        return positive if a.dtype.kind == "b" else positive - (a < 0).astype(a.dtype)

    return Result(in_layout(value, a), (lambda g, out: xp_of(g).zeros_like(g),))

"""Elementwise ops that few models need, and cumulative products."""

from __future__ import annotations

import math

import numpy as np

from nnmpi.addons.torchlike.ops.rounding import trunc
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import in_16_bits, is_float
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import elementwise, floating, widened_on_device
from nnmpi.autograd.ops.elementwise import divide, floor_divide, remainder


def atan(a: Array) -> Result:
    """The arc tangent, elementwise."""
    xp, a = xp_of(a), floating(a)
    y = elementwise(xp.arctan, a)
    return Result(y, (lambda g, out: elementwise(lambda g, a: g / (1 + a * a), g, a),))


def log2(a: Array) -> Result:
    """The logarithm to base 2, elementwise."""
    xp, a = xp_of(a), floating(a)
    y = elementwise(xp.log2, a)
    return Result(y, (lambda g, out: elementwise(lambda g, a: g / (a * math.log(2)), g, a),))


MOST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127
"""The largest number of bfloat16, which NumPy's finfo does not know."""


def nan_to_num(
    a: Array, *, nan: float | None, posinf: float | None, neginf: float | None
) -> Result:
    """The elements with NaN and infinities replaced, by 0 and the largest numbers unless numbers
    are given; these places have no gradient."""
    xp = xp_of(a)
    if in_16_bits(a):  # computed in float32, which has larger numbers
        most = float(np.finfo("float16").max) if a.dtype == "float16" else MOST_BFLOAT16
        posinf, neginf = most if posinf is None else posinf, -most if neginf is None else neginf
    y = elementwise(
        lambda a: xp.nan_to_num(a, nan=nan or 0.0, posinf=posinf, neginf=neginf).astype(a.dtype), a
    )
    return Result(y, (lambda g, out: elementwise(lambda g, a: g * xp.isfinite(a), g, a),))


def rounded_quotient(a: Array, b: Array, *, to_floor: bool) -> Result:
    """a / b rounded down or, unless `to_floor`, towards 0; the gradients are 0."""
    y = floor_divide(a, b).value
    if not to_floor and is_float(y.dtype):
        y = trunc(divide(a, b).value).value
    elif not to_floor:
        y = y + ((y < 0) & (remainder(a, b).value != 0))
    xp, shapes = xp_of(y), [getattr(v, "shape", ()) for v in (a, b)]
    zeros = [lambda g, out, shape=shape: xp.zeros(shape, g.dtype) for shape in shapes]
    return Result(y, tuple(zeros))


@widened_on_device
def cumprod(a: Array, *, axis: int) -> Result:
    """The cumulative product along `axis`. With g the gradient of y, that of a is sum(g[j] y[j] for
    j >= k) / a[k] before the first 0. At that 0 it is the same sum of the products without it, and
    behind it 0."""
    xp, a = xp_of(a), a.astype("int64") if a.dtype.kind in "biu" else a
    if a.ndim == 0:
        return Result(a.copy(), (lambda g, out: g,))
    y = xp.cumprod(a, axis=axis)

    def sums_from(terms: Array) -> Array:
        return xp.flip(xp.cumsum(xp.flip(terms, axis=axis), axis=axis), axis=axis)

    def vjp(g: Array, out: Array | None) -> Array:
        zeros = xp.cumsum(a == 0, axis=axis)
        is_first = (a == 0) & (zeros == 1)
        others = xp.cumprod(xp.where(is_first, 1, a), axis=axis)
        leading = sums_from(g * y) / xp.where(a == 0, 1, a)
        at_first = sums_from(g * xp.where(zeros, others, 0))
        return xp.where(zeros == 0, leading, xp.where(is_first, at_first, 0)).astype(g.dtype)

    return Result(y, (vjp,))

"""Activations that only layers of add-ons use."""

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.precision import elementwise, multiplied


def hardtanh(a: Array, *, low: float, high: float) -> Result:
    """The elements of a limited to [low, high]; the gradient passes inside, without both ends."""
    if not is_float(a.dtype):
        if a.dtype.kind == "b" or (a.dtype.kind == "u" and low < 0):
            raise TypeError(f"hardtanh: {a.dtype} for the limits {low} and {high}: write x.float()")
        low, high = int(low), int(high)
    y = elementwise(lambda a: xp_of(a).clip(a, low, high), a)
    inside = elementwise(lambda a: ((a > low) & (a < high)).astype(a.dtype), a)
    return Result(y, (lambda g, out: multiplied(g, inside),))

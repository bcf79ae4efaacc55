"""Arrays in 16 bits: casts, sums in float32, and ops that NumPy computes in float32 and rounds.

ml_dtypes adds and multiplies a number of bfloat16 in 8 ns, so on the host kernels do.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import in_16_bits, is_half, on_host_in_16_bits
from nnmpi.arrays.kernels import Result, Vjp
from nnmpi.arrays.kernels.layouts import in_layout
from nnmpi.arrays.native.table import InOut, Kernel, Out, kernel


@partial(kernel, composed=True)
def cast_loop(x: Array, y: Out) -> None:
    y[...] = x


@partial(kernel, composed=True)
def round_loop(x: Array, y: Out) -> None:
    """`cast_loop` to 16 bits of rows that lie apart in memory."""
    y[...] = x


@kernel
def merge_loop(masters: InOut, values: Array) -> None:
    """Masters of which these values are not the rounding become the values."""
    xp = xp_of(masters)
    bits = f"u{values.dtype.itemsize}"
    same = masters.astype(values.dtype).view(bits) == values.view(bits)
    masters[...] = xp.where(same, masters, values.astype(masters.dtype))


@kernel
def add_loop(a: Array, b: Array, y: Out) -> None:
    xp_of(a).add(a, b, out=y)


@kernel
def subtract_loop(a: Array, b: Array, y: Out) -> None:
    xp_of(a).subtract(a, b, out=y)


@kernel
def multiply_loop(a: Array, b: Array, y: Out) -> None:
    xp_of(a).multiply(a, b, out=y)


def cast(a: Array, dtype: Any) -> Array:
    """The array in this type, in the same order of memory; itself if it has the type."""
    if a.dtype == dtype:
        return a
    y = xp_of(a).empty_like(a, dtype)
    cast_loop(a, y)
    return y


def added(a: Array, b: Array) -> Array:
    """a + b."""
    return _of_two(add_loop, operator.add, a, b)


def subtracted(a: Array, b: Array) -> Array:
    """a - b."""
    return _of_two(subtract_loop, operator.sub, a, b)


def multiplied(a: Array, b: Array) -> Array:
    """a * b."""
    return _of_two(multiply_loop, operator.mul, a, b)


def _of_two(loop: Kernel, op: Callable[[Any, Any], Array], a: Array, b: Array) -> Array:
    """op(a, b), by a loop if both have the same type of 16 bits, on the host, and one shape."""
    if not on_host_in_16_bits(a) or getattr(b, "dtype", None) != a.dtype or a.shape != b.shape:
        return elementwise(op, a, b)
    y = np.empty_like(a)
    loop(a, b, y)
    return y


def by_float32(op: Callable[..., Array], *args: Any) -> Array:
    """op(*args), an array of 16 bits where all arrays have them, in one type."""
    dtype = next((a.dtype for a in args if in_16_bits(a)), None)
    if dtype is None or any(getattr(a, "dtype", dtype) != dtype for a in args):
        return op(*args)
    if not any(map(on_host_in_16_bits, args)):
        found = op(*args)  # bfloat16 beside a Python number may become float32
        return cast(found, dtype) if found.dtype == "float32" else found
    return cast(op(*map(computed, args)), dtype)


def elementwise(op: Callable[..., Array], *args: Any) -> Array:
    """`by_float32` and `in_layout` of an op that is elementwise."""
    return by_float32(partial(in_layout, op), *args)


def add_to(target: Array, new: Array) -> None:
    """target += new."""
    if on_host_in_16_bits(target):
        target[...] = added(target, new)
    else:
        target += new


def _summable(a: Array) -> Array:
    """float16 as a copy in float32: NumPy's sums widen it at 1 ns a number."""
    return computed(a) if a.dtype == np.float16 else a


def summed(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum over `axis`; of 16 bits it is added up in float32, and rounded once."""
    if is_half(a.dtype):
        total = _summable(a).sum(axis=axis, keepdims=keepdims, dtype=np.float32)
        return total.astype(a.dtype)
    return a.sum(axis=axis, keepdims=keepdims)


def averaged(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean over `axis`; of 16 bits it is added up in float32, and rounded once."""
    if is_half(a.dtype):
        mean = _summable(a).mean(axis=axis, keepdims=keepdims, dtype=np.float32)
        return mean.astype(a.dtype)
    return a.mean(axis=axis, keepdims=keepdims)


def computed(a: Array) -> Array:
    """An array as NumPy computes with it: 16 bits as a copy in float32."""
    return cast(a, np.float32) if on_host_in_16_bits(a) else a


def on_device_in_16_bits(array: Any) -> bool:
    """Whether a device has this array, in 16 bits."""
    return in_16_bits(array) and not on_host_in_16_bits(array)


def halves_in_float32(
    op: Callable[..., Result], which: Callable[[Any], bool] = in_16_bits
) -> Callable[..., Result]:
    """The op, but of arrays in 16 bits `in_float32`: of squares beyond 65504, and of sums."""

    @wraps(op)
    def computing(*arrays: Any, **options: Any) -> Result:
        if any(map(which, arrays)):
            return in_float32(partial(op, **options), *arrays)
        return op(*arrays, **options)

    return computing


device_in_float32 = partial(halves_in_float32, which=on_device_in_16_bits)
"""The same for devices alone: an op whose kernels do so by themselves on the host."""


def in_float32(op: Callable[..., Result], *arrays: Array) -> Result:
    """An op on copies in float32, which are kept for the backward pass where it reads them. Python
    numbers stay as they are.

    Its value and the gradients have the type of the first array that has 16 bits.
    """
    dtype = next(a.dtype for a in arrays if in_16_bits(a))
    result = op(*(cast(a, np.float32) if in_16_bits(a) else a for a in arrays))
    plain = result.prepare

    def prepare(g: Array, needs: Sequence[bool]) -> Any:
        g = cast(g, np.float32)
        return g if plain is None else plain(g, needs)

    def rounded(vjp: Vjp) -> Vjp:
        return lambda shared, out: cast(vjp(shared, None), dtype)

    return Result(cast(result.value, dtype), tuple(map(rounded, result.vjps)), prepare)

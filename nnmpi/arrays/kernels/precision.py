"""The types and the order of memory that ops compute in: the policy for what is no kernel.

    cast, added, subtracted, multiplied, summed, averaged   arithmetic of arrays of any float type
    by_float32, elementwise                                 a function of arrays
    widened, widened_on_device, ...                         an op, with its gradients

Arrays in 16 bits are computed with in float32, and what is returned is rounded once. ml_dtypes adds
and multiplies a number of bfloat16 in 8 ns, so on the host kernels do.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial, wraps
from numbers import Number
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import in_16_bits, is_half, on_host_in_16_bits
from nnmpi.arrays.kernels import Result, Vjp
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


def _of_two(loop: Kernel, op: Callable[[Any, Any], Array], a: Array, b: Array) -> Array:
    """op(a, b), by a loop if both have the same type of 16 bits, on the host, and one shape."""
    if not on_host_in_16_bits(a) or getattr(b, "dtype", None) != a.dtype or a.shape != b.shape:
        return elementwise(op, a, b)
    y = np.empty_like(a)
    loop(a, b, y)
    return y


added = partial(_of_two, add_loop, operator.add)
"""a + b."""

subtracted = partial(_of_two, subtract_loop, operator.sub)
"""a - b."""

multiplied = partial(_of_two, multiply_loop, operator.mul)
"""a * b."""


def by_float32(op: Callable[..., Array], *args: Any) -> Array:
    """op(*args), an array of 16 bits where all arrays have them, in one type."""
    dtype = next((a.dtype for a in args if in_16_bits(a)), None)
    if dtype is None or any(getattr(a, "dtype", dtype) != dtype for a in args):
        return op(*args)
    if not any(map(on_host_in_16_bits, args)):
        result = op(*args)  # bfloat16 beside a Python number may become float32
        return cast(result, dtype) if result.dtype == "float32" else result
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


def summed(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The sum over `axis`; of 16 bits it is added up in float32, and rounded once."""
    return _reduced("sum", a, axis, keepdims)


def averaged(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """The mean over `axis`; of 16 bits it is added up in float32, and rounded once."""
    return _reduced("mean", a, axis, keepdims)


def _reduced(name: str, a: Array, axis: Any, keepdims: bool) -> Array:
    if not is_half(a.dtype):
        return getattr(a, name)(axis=axis, keepdims=keepdims)
    # a copy, since NumPy's sums widen float16 at 1 ns a number
    terms = computed(a) if a.dtype == np.float16 else a
    total = getattr(terms, name)(axis=axis, keepdims=keepdims, dtype=np.float32)
    return total.astype(a.dtype)


def computed(a: Array) -> Array:
    """An array as NumPy computes with it: 16 bits as a copy in float32."""
    return cast(a, np.float32) if on_host_in_16_bits(a) else a


def on_device_in_16_bits(array: Any) -> bool:
    """Whether a device has this array, in 16 bits."""
    return in_16_bits(array) and not on_host_in_16_bits(array)


def as_type_of(value: Any, like: Any) -> Any:
    """A Python number beside an array in 16 bits as an array of that type; other values as they
    are."""
    if not hasattr(value, "dtype") and in_16_bits(like):
        return xp_of(like).asarray(value, like.dtype)
    return value


def in_one_type(a: Array, b: Array) -> tuple[Array, Array]:
    """Both arrays in that type of theirs which has 16 bits, if they differ and one has."""
    if a.dtype == b.dtype or not (in_16_bits(a) or in_16_bits(b)):
        return a, b
    dtype = a.dtype if in_16_bits(a) else b.dtype
    return cast(a, dtype), cast(b, dtype)


def sortable(a: Array) -> Array:
    """The array, but of bfloat16 in float32: CuPy has no argsort and argmax of bfloat16."""
    return cast(a, "float32") if a.dtype.name == "bfloat16" else a


# ---- ops, with their gradients

Op = Callable[..., Result]


def _widening(which: Callable[[Sequence[Any]], bool]) -> Callable[[Op], Op]:
    """The decorator of ops that are computed `in_float32` of `which` arrays."""

    def decorated(op: Op) -> Op:
        @wraps(op)
        def computing(*arrays: Any, **options: Any) -> Result:
            if which(arrays):
                return in_float32(partial(op, **options), *arrays)
            return op(*arrays, **options)

        return computing

    return decorated


widened = _widening(lambda arrays: any(map(in_16_bits, arrays)))
"""Wraps an op that would overflow in 16 bits on any backend: it squares beyond 65504, or sums."""

widened_on_device = _widening(lambda arrays: any(map(on_device_in_16_bits, arrays)))
"""On devices alone: an op whose kernels do so by themselves on the host."""

widened_beside_numbers = _widening(
    lambda arrays: (
        not all(hasattr(a, "dtype") for a in arrays) and any(map(on_host_in_16_bits, arrays))
    )
)
"""On the host beside a Python number, so that it is rounded once."""


widened_products = _widening(
    lambda arrays: (
        any(map(on_host_in_16_bits, arrays))
        or (any(a.ndim == 1 for a in arrays) and any(map(in_16_bits, arrays)))
    )
)
"""Wraps a product: on the host, and of vectors, which CuPy adds up in 16 bits."""


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


# ---- the order of memory


def in_layout(op: Callable[..., Array], *args: Any) -> Array:
    """op(*args), which is elementwise, in the order of memory of its largest argument.

    NumPy keeps this order. CuPy's ufuncs make C order of it: they are given transposed views.
    Gradients of tables have no order of memory: they add themselves.
    """
    arrays = [a for a in args if not isinstance(a, Number)]
    on_device = [hasattr(a, "strides") and not isinstance(a, np.ndarray) for a in arrays]
    if not arrays or not all(on_device):
        return op(*args)
    first = max(arrays, key=lambda a: (a.size, a.ndim))
    if first.ndim < 2 or first.flags.c_contiguous:
        return op(*args)
    order, back = _orders(first)
    return op(*(_transposed(a, order) for a in args)).transpose(back)


def concatenated(arrays: Sequence[Array], axis: int) -> Array:
    """The arrays joined along an axis, in the order of memory of the largest one."""
    first = max(arrays, key=lambda a: a.size)
    xp = xp_of(first)
    if isinstance(first, np.ndarray) or first.flags.c_contiguous:
        return xp.concatenate(arrays, axis=axis)
    order, back = _orders(first)
    return xp.concatenate([a.transpose(order) for a in arrays], axis=back[axis]).transpose(back)


def _orders(a: Array) -> tuple[list[int], list[int]]:
    """The axes in their order of memory, and where each of them is in it."""
    order = sorted(range(a.ndim), key=lambda axis: -a.strides[axis])
    return order, sorted(range(a.ndim), key=order.__getitem__)


def _transposed(a: Any, order: list[int]) -> Any:
    """A view with the axes in this order, behind leading ones where it has fewer."""
    if getattr(a, "ndim", 0) == 0:
        return a
    return a.reshape((1,) * (len(order) - a.ndim) + a.shape).transpose(order)

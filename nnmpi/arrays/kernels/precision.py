"""Arithmetic for ops that are not kernels: in which dtype and memory order each op computes.

    cast, added, subtracted, multiplied, summed, averaged   arithmetic of arrays of any float dtype
    by_float32, elementwise                                 call a function of arrays
    promoted, all_promoted, floating                        PyTorch's types of results
    widened, widened_on_device, ...                         decorators of ops: value and gradients
                                                            are computed in float32

Ops compute 16-bit arrays in float32, and round results once. NumPy takes 8 ns to add or multiply a
bfloat16 element (ml_dtypes), so on the host kernels do it.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce, wraps
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import (
    category,
    common_type,
    fitting,
    in_16_bits,
    is_float,
    is_half,
    on_host_in_16_bits,
)
from nnmpi.arrays.kernels import Result, Vjp
from nnmpi.arrays.native.table import InOut, Kernel, Out, kernel


@partial(kernel, composed=True)
def cast_loop(x: Array, y: Out) -> None:
    y[...] = x


@partial(kernel, composed=True)
def round_loop(x: Array, y: Out) -> None:
    """Converts x to the dtype of y, for 16-bit arrays with gaps between rows."""
    y[...] = x


@kernel
def merge_loop(masters: InOut, values: Array) -> None:
    """Sets masters to `values`, their 16-bit copies, where these are not the masters rounded: there
    the program has written to them since the last step."""
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
    """Returns the array in this dtype and the same layout; itself if it has it."""
    if a.dtype == dtype:
        return a
    y = xp_of(a).empty_like(a, dtype)
    cast_loop(a, y)
    return y


_FLOAT32, _NUMBERS = np.dtype(np.float32), (float, int)


def are_plain(a: Any, b: Any) -> bool:
    """True for NumPy arrays of float32, one of them perhaps a Python number."""
    # without calls, which take as long as an operation on a small array
    is_plain = (type(a) is np.ndarray and a.dtype is _FLOAT32) or type(a) in _NUMBERS
    return is_plain and ((type(b) is np.ndarray and b.dtype is _FLOAT32) or type(b) in _NUMBERS)


def _of_two(loop: Kernel, op: Callable[[Any, Any], Array], a: Array, b: Array) -> Array:
    """op(a, b), by the kernel `loop` for 16-bit NumPy arrays of one type and shape."""
    if are_plain(a, b):
        return op(a, b)
    if not on_host_in_16_bits(a) or getattr(b, "dtype", None) != a.dtype or a.shape != b.shape:
        return elementwise(op, a, b)
    y = np.empty_like(a)
    loop(a, b, y)
    return y


added = partial(_of_two, add_loop, operator.add)
"""Computes a + b."""

subtracted = partial(_of_two, subtract_loop, operator.sub)
"""Computes a - b."""

multiplied = partial(_of_two, multiply_loop, operator.mul)
"""Computes a * b."""


def by_float32(op: Callable[..., Array], *args: Any) -> Array:
    """Computes op(*args) in float32 and rounds the result, if all arrays have the same 16-bit
    dtype; else calls op with the arrays as they are."""
    dtype = ([a.dtype for a in args if in_16_bits(a)] or [None])[0]
    if dtype is None or any(getattr(a, "dtype", dtype) != dtype for a in args):
        return op(*args)
    if not any(map(on_host_in_16_bits, args)):
        result = op(*args)  # bfloat16 and a Python number may give float32
        return cast(result, dtype) if result.dtype == "float32" else result
    return cast(op(*map(float32_on_host, args)), dtype)


def elementwise(op: Callable[..., Array], *args: Any) -> Array:
    """Computes an elementwise op(*args): in float32 with one rounding, if all arrays have the same
    16-bit dtype, and in the memory layout of the largest array."""
    return by_float32(partial(in_layout, op), *args)


def add_to(target: Array, new: Array) -> None:
    """Adds the array `new` to `target` in place; the sums of 16-bit arrays are rounded once."""
    if on_host_in_16_bits(target):
        target[...] = added(target, new)
    else:
        target += new


def summed(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Sums over `axis`; a 16-bit array is added up in float32, and the sum is rounded once."""
    return _reduced("sum", a, axis, keepdims)


def averaged(a: Array, axis: Any = None, keepdims: bool = False) -> Array:
    """Averages over `axis`; a 16-bit array is added up in float32, and the mean is rounded once."""
    return _reduced("mean", a, axis, keepdims)


def _reduced(name: str, a: Array, axis: Any, keepdims: bool) -> Array:
    if a.dtype is _FLOAT32 or not is_half(a.dtype):
        return getattr(a, name)(axis=axis, keepdims=keepdims)
    # copied first: NumPy's sums widen float16 at 1 ns an element
    terms = float32_on_host(a) if a.dtype == np.float16 else a
    total = getattr(terms, name)(axis=axis, keepdims=keepdims, dtype=np.float32)
    return total.astype(a.dtype)


def float32_on_host(a: Array) -> Array:
    """Returns a float32 copy of a 16-bit NumPy array; other arrays are returned unchanged."""
    return cast(a, np.float32) if on_host_in_16_bits(a) else a


def on_device_in_16_bits(array: Any) -> bool:
    return in_16_bits(array) and not on_host_in_16_bits(array)


def as_type_of(value: Any, like: Any) -> Any:
    """Converts a number to the dtype of `like`, if that has 16 bits."""
    if not hasattr(value, "dtype") and in_16_bits(like):
        return xp_of(like).asarray(value, like.dtype)
    return value


def in_one_type(a: Array, b: Array) -> tuple[Array, Array]:
    """Returns the two factors of a matrix product in one dtype: if theirs differ and one has 16
    bits, cast to the dtype of the 16-bit one."""
    if a.dtype is b.dtype or not (in_16_bits(a) or in_16_bits(b)):
        return a, b
    dtype = a.dtype if in_16_bits(a) else b.dtype
    return cast(a, dtype), cast(b, dtype)


def promoted(a: Any, b: Any) -> tuple[Any, Any]:
    """Returns two operands, arrays or numbers, converted so that an op has PyTorch's result type.

    Of two floats, or two integers, a 0-d array does not promote another array. A number promotes
    only to another category: a float makes float32 of integers, and an integer has to fit among
    them (`fitting`). Two arrays of one type stay: the op itself converts 16 bits.
    """
    x, y = getattr(a, "dtype", None), getattr(b, "dtype", None)
    if x is None or y is None:
        if float in (a.__class__, b.__class__):
            return floating(a), floating(b)
        return fitting(a, y), fitting(b, x)
    if x is y or x == y:
        return a, b
    if category(x) == category(y) and (a.ndim == 0) != (b.ndim == 0):
        dtype = y if a.ndim == 0 else x
    else:
        dtype = common_type(x, y)
    return cast(a, dtype), cast(b, dtype)


def all_promoted(arrays: Sequence[Array]) -> Sequence[Array]:
    """Converts arrays to one dtype, so that they can be concatenated."""
    dtypes = [a.dtype for a in arrays]
    if dtypes.count(dtypes[0]) == len(dtypes):
        return arrays
    dtype = reduce(common_type, dtypes)
    return [cast(a, dtype) for a in arrays]


def floating(a: Any) -> Any:
    """Converts integers and booleans to float32; returns floats and Python numbers unchanged."""
    dtype = getattr(a, "dtype", None)
    return a if dtype is None or dtype is _FLOAT32 or is_float(dtype) else cast(a, _FLOAT32)


def sortable(a: Array) -> Array:
    """Returns bfloat16 as float32: CuPy cannot argsort or argmax it."""
    in_bfloat16 = a.dtype.itemsize == 2 and a.dtype.name == "bfloat16"  # a name takes NumPy long
    return cast(a, "float32") if in_bfloat16 else a


# ---- ops, with their gradients

Op = Callable[..., Result]


def _widening(which: Callable[[Sequence[Any]], bool]) -> Callable[[Op], Op]:
    """Makes a decorator: 16-bit ops compute in float32 where `which(arrays)` is true."""

    def decorated(op: Op) -> Op:
        @wraps(op)
        def computing(*arrays: Any, **options: Any) -> Result:
            for a in arrays:  # float32 first: small models feel each call
                if getattr(a, "dtype", _FLOAT32) is not _FLOAT32 and is_half(a.dtype):
                    if which(arrays):
                        return in_float32(partial(op, **options), *arrays)
                    break
            return op(*arrays, **options)

        return computing

    return decorated


widened = _widening(lambda arrays: True)
"""Decorates an op that squares or sums: in float32 everywhere, not to overflow."""

widened_on_device = _widening(lambda arrays: any(map(on_device_in_16_bits, arrays)))
"""Decorates an op in float32 on devices: kernels of the host are so anyway."""

widened_beside_numbers = _widening(
    lambda arrays: (
        not all(hasattr(a, "dtype") for a in arrays) and any(map(on_host_in_16_bits, arrays))
    )
)
"""Decorates an op in float32 on the host beside a number, to round once."""


widened_products = _widening(
    lambda arrays: any(map(on_host_in_16_bits, arrays)) or any(a.ndim == 1 for a in arrays)
)
"""Decorates a matrix product: float32 on the host, on a device only with vectors."""


def in_float32(op: Callable[..., Result], *arrays: Array) -> Result:
    """Computes an op on float32 copies of 16-bit arrays, which the backward pass may keep. Value
    and gradients have the dtype of the first 16-bit array."""
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
    """Computes an elementwise op(*args) in the memory layout of its largest argument.

    NumPy keeps this layout. CuPy's ufuncs return C order, so they get transposed views. Sparse
    gradients of embedding tables have no layout: they define addition themselves.
    """
    arrays = [a for a in args if not isinstance(a, (int, float, np.generic))]
    if not arrays or any(isinstance(a, np.ndarray) or not hasattr(a, "strides") for a in arrays):
        return op(*args)
    first = max(arrays, key=lambda a: (a.size, a.ndim))
    if first.ndim < 2 or first.flags.c_contiguous:
        return op(*args)
    order, back = _orders(first)
    return op(*(_transposed(a, order) for a in args)).transpose(back)


def concatenated(arrays: Sequence[Array], axis: int) -> Array:
    """Concatenates arrays along an axis, in the memory layout of the largest one."""
    first = max(arrays, key=lambda a: a.size)
    xp = xp_of(first)
    if isinstance(first, np.ndarray) or first.flags.c_contiguous:
        return xp.concatenate(arrays, axis=axis)
    order, back = _orders(first)
    return xp.concatenate([a.transpose(order) for a in arrays], axis=back[axis]).transpose(back)


def _orders(a: Array) -> tuple[list[int], list[int]]:
    """Returns the axes of an array in memory order, and the inverse permutation."""
    order = sorted(range(a.ndim), key=lambda axis: -a.strides[axis])
    return order, sorted(range(a.ndim), key=order.__getitem__)


def _transposed(a: Any, order: list[int]) -> Any:
    """Returns a view with axes in this order, after new leading axes of length 1."""
    if getattr(a, "ndim", 0) == 0:
        return a
    return a.reshape((1,) * (len(order) - a.ndim) + a.shape).transpose(order)

"""The limits of types, and how the elements of a tensor lie in memory, under PyTorch's names."""

from dataclasses import dataclass
from itertools import accumulate
from operator import mul
from typing import Any

import numpy as np

from nnmpi.arrays.dtypes import is_float, named
from nnmpi.autograd.functional import as_tensors
from nnmpi.autograd.tensor import Tensor


@dataclass(frozen=True, repr=False)
class FloatLimits:
    """The limits of a floating-point type: its largest number `max`, the smallest one `tiny` of
    full precision, and the step `eps` from 1 to the next number."""

    resolution: float
    min: float
    max: float
    eps: float
    smallest_normal: float
    tiny: float
    dtype: str
    bits: int

    def __repr__(self) -> str:
        numbers = ("resolution", "min", "max", "eps", "smallest_normal", "tiny")
        shown = ", ".join(f"{name}={getattr(self, name):g}" for name in numbers)
        return f"finfo({shown}, dtype={self.dtype})"


@dataclass(frozen=True, repr=False)
class IntegerLimits:
    """The limits of an integer type."""

    min: int
    max: int
    bits: int
    dtype: str

    def __repr__(self) -> str:
        return f"iinfo(min={self.min}, max={self.max}, dtype={self.dtype})"


def finfo(type: Any = "float32") -> FloatLimits:
    """The limits of a floating-point type, as Python numbers."""
    dtype = np.dtype(named(type))
    if not is_float(dtype):
        raise TypeError(f"finfo: {dtype} is no floating-point type: write nnmpi.iinfo({dtype})")
    limits: Any = np.finfo(dtype) if dtype.kind == "f" else _of_bfloat16(dtype)
    names = ("min", "max", "eps", "smallest_normal", "tiny")
    numbers = {name: float(getattr(limits, name)) for name in names}
    return FloatLimits(10.0**-limits.precision, **numbers, dtype=dtype.name, bits=int(limits.bits))


def _of_bfloat16(dtype: Any) -> Any:
    import ml_dtypes  # NumPy has that type from this package alone

    limits: Any = ml_dtypes.finfo
    return limits(dtype)


def iinfo(type: Any) -> IntegerLimits:
    """The limits of an integer type, as Python numbers."""
    dtype = np.dtype(type)
    if dtype.kind not in "iu":
        raise TypeError(f"iinfo: {dtype} is no integer type: write nnmpi.finfo({dtype})")
    limits = np.iinfo(dtype)
    return IntegerLimits(int(limits.min), int(limits.max), limits.bits, dtype.name)


def is_floating_point(t: Any) -> bool:
    """True if the type of a tensor is a floating-point type."""
    (t,) = as_tensors(t)
    return is_float(t.dtype)


def is_contiguous(t: Tensor, memory_format: Any = None) -> bool:
    """True if `t.contiguous()` is t itself; images, channels-last in memory, always count so."""
    return t.storage.sharing is None or bool(t._array.flags.c_contiguous)


def stride(t: Tensor, dim: int | None = None) -> Any:
    """How many elements lie between neighbours along each axis, or along `dim`; of a contiguous
    tensor those in C order, in which PyTorch keeps images too."""
    if is_contiguous(t):
        lengths = [max(n, 1) for n in t.shape[:0:-1]]
        steps = [*accumulate(lengths, mul, initial=1)][::-1] if t.ndim else []
    else:
        steps = [n // t._array.itemsize for n in t._array.strides]
    return tuple(steps) if dim is None else steps[dim]

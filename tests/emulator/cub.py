"""CuPy's modules of CUB and Thrust, whose compiled kernels are not PTX: reductions, scans, sorts.

The functions have the checks, shapes and types of CuPy's, and put the work on the current stream.
"""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

ARGMIN, ARGMAX, SUM, PRODUCT = 3, 4, 0, 7
SORTED = "?bBhHiIlLqQefd"


class Calls:
    """The functions, for the library that carries them out."""

    def __init__(self, driver: ctypes.CDLL, cupy: Any) -> None:
        self._driver, self._cupy = driver, cupy

    def _call(self, name: str, dtype: Any, *arguments: int) -> None:
        stream = self._cupy.cuda.get_current_stream().ptr
        pointers = [
            ctypes.c_int64(value) for value in (stream, ord(np.dtype(dtype).char), *arguments)
        ]
        getattr(self._driver, f"emulator_{name}")(*pointers)

    def device_reduce(
        self,
        x: Any,
        op: int,
        reduce_axis: Any,
        out_axis: Any,
        out: Any = None,
        keepdims: bool = False,
    ) -> Any:
        """All numbers of an array, reduced to one."""
        shape = (1,) * x.ndim if keepdims else ()
        return self._reduced(x, op, reduce_axis, x.size, shape, out, "C")

    def device_segmented_reduce(
        self,
        x: Any,
        op: int,
        reduce_axis: Sequence[int],
        out_axis: Sequence[int],
        out: Any = None,
        keepdims: bool = False,
        contiguous_size: int = 0,
    ) -> Any:
        """Axes that lie behind each other in memory, reduced."""
        kept = [n if i in out_axis else 1 for i, n in enumerate(x.shape)]
        shape = kept if keepdims else [x.shape[i] for i in out_axis]
        order = "C" if x.flags.c_contiguous else "F"
        return self._reduced(x, op, reduce_axis, contiguous_size, tuple(shape), out, order)

    def _reduced(
        self,
        x: Any,
        op: int,
        axes: Sequence[int],
        n: int,
        shape: tuple[int, ...],
        out: Any,
        order: str,
    ) -> Any:
        if out is not None and out.shape != shape:
            raise ValueError("output parameter for reduction operation has the wrong shape")
        if op not in (SUM, PRODUCT) and 0 in [x.shape[i] for i in axes]:
            raise ValueError("zero-size array to reduction operation which has no identity")
        x = x if order == "F" else self._cupy.ascontiguousarray(x)
        y = self._cupy.ndarray(shape, np.int64 if op in (ARGMIN, ARGMAX) else x.dtype, order=order)
        if x.size == 0:
            y.fill(op == PRODUCT)
        else:
            self._call("reduce", x.dtype, x.data.ptr, y.data.ptr, x.size // n, n, op)
        if out is None:
            return y
        self._cupy._core.elementwise_copy(y, out)
        return out

    def device_scan(self, x: Any, op: int) -> Any:
        """Running sums or products, in place."""
        if x.size:
            self._call("scan", x.dtype, x.data.ptr, x.size, op)
        return x

    def sort(self, dtype: Any, data: int, keys: int, shape: Sequence[int]) -> None:
        self._sort(dtype, data, 0, shape)

    def argsort(self, dtype: Any, places: int, data: int, keys: int, shape: Sequence[int]) -> None:
        self._sort(dtype, data, places, shape)

    def _sort(self, dtype: Any, data: int, places: int, shape: Sequence[int]) -> None:
        if np.dtype(dtype).char not in SORTED:
            raise NotImplementedError(f"Sorting arrays with dtype '{dtype}' is not supported")
        self._call("sort", dtype, data, places, math.prod(shape) // max(shape[-1], 1), shape[-1])

    def lexsort(self, dtype: Any, places: int, keys: int, k: int, n: int) -> None:
        raise NotImplementedError("lexsort is not emulated")


def install(driver: ctypes.CDLL) -> None:
    import cupy

    calls = Calls(driver, cupy)
    for name in ("device_reduce", "device_segmented_reduce", "device_scan"):
        setattr(cupy.cuda.cub, name, getattr(calls, name))
    for name in ("sort", "argsort", "lexsort"):
        setattr(cupy.cuda.thrust, name, getattr(calls, name))

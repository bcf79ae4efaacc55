"""The table of kernels: each inner loop by its name, in NumPy, compiled, and in CUDA.

    @kernel                      an entry of KERNELS: this function, which computes on any backend;
    def add(a, b, y: Out)        native's of that name for NumPy's arrays, if it was built;
                                 cuda's for CuPy's, if there is one

Callers do not know which of them computes. On arrays in 16 bits each entry computes in float32 and
rounds its results once: compiled kernels do so a block at a time in cache (`native/halves.c`), CUDA
kernels element by element, and where neither takes the arguments, the function runs on float32
copies. Annotations say which arrays are copied back, as types do in C. On a device a `narrow` entry
gets 16-bit arrays as they are.
"""

from collections.abc import Callable
from itertools import chain, repeat
from typing import Annotated, Any, get_args

import numpy as np

from nnmpi.arrays import cuda, native
from nnmpi.arrays.backend import xp_of
from nnmpi.arrays.dtypes import in_16_bits, on_host_in_16_bits
from nnmpi.arrays.meta import is_meta
from nnmpi.arrays.meta.log import log_call

Out = Annotated[Any, "written"]
"""An array that a kernel writes completely, and does not read before."""

InOut = Annotated[Any, "read and written"]
"""An array that a kernel reads and changes."""


def _mark(annotation: Any) -> Any:
    """Returns Out or InOut if an annotation contains one, inside a union or a sequence too; else
    None."""
    inside = get_args(annotation)
    if annotation in (Out, InOut):
        return annotation
    return next((mark for mark in map(_mark, inside) if mark), None)


class Kernel:
    """A loop over arrays that writes into some of them, in up to three forms: NumPy, C and CUDA.

    All arrays of a call are on one backend, which the first one tells.
    """

    __slots__ = ("compiled", "composed", "cuda", "marks", "narrow", "reference")

    def __init__(
        self,
        reference: Callable[..., None],
        compiled: Callable[..., Any] | None,
        cuda: Callable[..., Any] | None,
        composed: bool = False,
        narrow: bool = False,
    ) -> None:
        self.reference, self.compiled, self.cuda = reference, compiled, cuda
        self.composed, self.narrow = composed, narrow
        *arguments, _ = reference.__annotations__.values()
        self.marks = [*map(_mark, arguments)]

    def __call__(self, *args: Any) -> None:
        # compiled first, without a look at the arrays: on the host a microsecond counts
        if self.compiled is not None and self.compiled(*args) is not NotImplemented:
            return
        is_on_host = isinstance(args[0], np.ndarray)
        if self.cuda and not is_on_host and self.cuda(*args) is not NotImplemented:
            return
        if is_meta(*args):  # without data there is nothing to compute
            log_call(self, *args)
            return
        widens = on_host_in_16_bits if self.narrow else in_16_bits
        if not self.composed and widens(args[0]):
            _in_float32(self, args)
        else:
            self.reference(*args)


_cast = native.kernel("cast_loop")


def _copy(x: Any, y: Any) -> None:
    if _cast is None or _cast(x, y) is NotImplemented:
        y[...] = x


def _in_float32(loop: Kernel, args: tuple[Any, ...]) -> None:
    """Calls a loop on float32 copies of 16-bit arrays, and rounds back those that it writes."""
    copies: list[tuple[Any, Any]] = []

    def widened(value: Any, mark: Any) -> Any:
        if isinstance(value, tuple | list) and not callable(value):
            return tuple(widened(item, mark) for item in value)
        if not in_16_bits(value):
            return value
        copy = xp_of(value).empty_like(value, np.float32)
        if mark is not Out:
            _copy(value, copy)
        if mark is not None:
            copies.append((value, copy))
        return copy

    loop(*map(widened, args, chain(loop.marks, repeat(loop.marks[-1]))))
    for array, copy in copies:
        _copy(copy, array)


KERNELS: dict[str, Kernel] = {}


def kernel(reference: Callable[..., None], composed: bool = False, narrow: bool = False) -> Kernel:
    """Enters a loop into the table of kernels, with its compiled and CUDA forms, if there are any.

    composed    the loop, or the kernels that it calls, take 16-bit arrays themselves
    narrow      on a device the loop takes 16-bit arrays: products and sums are in float32 there
    """
    name = reference.__name__
    compiled, on_gpu = native.kernel(name), cuda.KERNELS.get(name)
    KERNELS[name] = entry = Kernel(reference, compiled, on_gpu, composed, narrow)
    return entry

"""The table of kernels: each has a name and up to three implementations: NumPy, C, and a device's.

    @kernel                      adds this function to the table KERNELS; the compiled function of
    def add(a, b, y: Out)        the same name computes in its place on NumPy's arrays, if there is
                                 one, and that of an add-on on arrays of a device

Callers do not know which of these computes. For 16-bit arrays each kernel computes in float32 and
rounds its results once: compiled kernels do so a block at a time in cache (`native/halves.c`), CUDA
kernels element by element, and if neither takes the arguments, the function runs on float32 copies.
The annotations Out and InOut mark the arrays that are copied back. On a device a kernel marked
`narrow` gets 16-bit arrays as they are.
"""

from collections.abc import Callable, Mapping
from functools import cache
from itertools import chain, repeat
from typing import Annotated, Any, NamedTuple, get_args

import numpy as np

from nnmpi.addons import Table
from nnmpi.arrays import native
from nnmpi.arrays.backend import xp_of
from nnmpi.arrays.dtypes import in_16_bits, on_host_in_16_bits
from nnmpi.arrays.meta import is_meta
from nnmpi.arrays.meta.log import log_call

Out = Annotated[Any, "written"]
"""An array that a kernel overwrites completely, without reading it first."""

InOut = Annotated[Any, "read and written"]
"""An array that a kernel reads and changes."""


def _mark(annotation: Any) -> Any:
    """Returns Out or InOut if an annotation contains one, else None."""
    inside = get_args(annotation)
    if annotation in (Out, InOut):
        return annotation
    return next((mark for mark in map(_mark, inside) if mark), None)


class DeviceKernels(NamedTuple):
    """Kernels for arrays of a device.

    loops        a dict: name -> device version of an entry of KERNELS, or another kernel. Each
                 returns NotImplemented, before it writes anything, for arrays that it does not
                 support
    convolution  (x, w, shape): returns a ConvMethod; None if it has none for these
    """

    loops: Mapping[str, Callable[..., Any]] = {}
    convolution: Callable[..., Any] = lambda *args: None


NO_KERNELS = DeviceKernels()

DEVICE_KERNELS: Table[DeviceKernels] = Table("device_kernels")
"""By device: the kernels for its arrays."""


def device_kernels(array: Any) -> DeviceKernels:
    """Returns the kernels of an array's device; none for host and arrays without data."""
    return NO_KERNELS if isinstance(array, np.ndarray) else _of_device()


@cache
def _of_device() -> DeviceKernels:
    return DEVICE_KERNELS.row("cuda") or NO_KERNELS


class Kernel:
    """A function that computes on arrays of one backend and writes its results into some of them,
    in NumPy, in compiled C, or for a device: the first array determines which."""

    __slots__ = ("compiled", "composed", "marks", "name", "narrow", "reference")

    def __init__(
        self,
        reference: Callable[..., None],
        compiled: Callable[..., Any] | None,
        composed: bool = False,
        narrow: bool = False,
    ) -> None:
        self.reference, self.compiled, self.name = reference, compiled, reference.__name__
        self.composed, self.narrow = composed, narrow
        *arguments, _ = reference.__annotations__.values()
        self.marks = [*map(_mark, arguments)]

    def __call__(self, *args: Any) -> None:
        # compiled first, without a look at the arrays: on the host a microsecond counts
        if self.compiled is not None and self.compiled(*args) is not NotImplemented:
            return
        by_device = device_kernels(args[0]).loops.get(self.name)
        if by_device is not None and by_device(*args) is not NotImplemented:
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
    """Calls a loop on float32 copies of 16-bit arrays, and rounds the arrays that it writes."""
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
    """A decorator that makes a NumPy function a Kernel, with its compiled version, if there is one.

    composed    True: the function gets 16-bit arrays as they are, because it calls other kernels or
                converts them itself; False: it gets float32 copies of them
    narrow      True: the same for arrays of a device only, where products and sums are in float32
    """
    name = reference.__name__
    KERNELS[name] = entry = Kernel(reference, native.kernel(name), composed, narrow)
    return entry

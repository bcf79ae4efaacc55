"""Launches CUDA kernels. The array library compiles a source once for each process, device and set
of types.

    @launched
    def relu_loop(x, y):
        if not same_layout(x, y):
            return None
        return Launch("elementwise", "relu", x.size, (x, y, *counts(x.size)), type_of(x.dtype))

What such a function sees of its arguments are layouts, and numbers without values. It is called
once for each set of layouts, dtypes, integers and types: the host takes longer to check them than
to launch a kernel. The arguments of each call take the places of those that it has returned.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache, partial, wraps
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.backend import xp_of

OPTIONS = ("--fmad=false",)
"""Options of the compiler: a product and a sum are rounded one by one, as in NumPy."""

THREADS = 256  # in a block
MOST_BLOCKS = 1 << 12  # more would wait for a processor: instead threads take several elements
MOST_NUMBERS = 1 << 31  # of an array: 32-bit indices may pass the end by one step
NULL = np.uintp(0)
FOLDER = Path(__file__).parent
FLOAT, FLOATS = "float32", ("float32", "float16", "bfloat16")


def source(name: str, T: str = FLOAT, G: str = FLOAT) -> str:
    """Returns CUDA source code: `name`.cu of this folder after common.cuh, with the type names T
    (of most arrays) and G (of gradients) defined in front."""
    files = FOLDER / "common.cuh", FOLDER / f"{name}.cu"
    texts = (path.read_text(encoding="utf-8") for path in files)
    threads = f"#define THREADS {THREADS} /* in a block */\n"
    return "".join((threads, f"#define T {T}\n#define G {G}\n", *texts))


@lru_cache(maxsize=64)
def _module(xp: Any, file: str, T: str, G: str) -> Any:
    return xp.RawModule(code=source(file, T, G), options=OPTIONS)


class Layout(NamedTuple):
    """The form of an array, which is all but its address. `at` is its place among the arguments."""

    at: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    def transpose(self, axes: Sequence[int]) -> "Layout":
        """Returns the layout of the array with its axes in another order."""
        shape, strides = (tuple(of[i] for i in axes) for of in (self.shape, self.strides))
        return self._replace(shape=shape, strides=strides)

    @property
    def is_contiguous(self) -> bool:
        """True if the elements are in the order of the axes, without gaps."""
        inner = (prod(self.shape[i + 1 :]) for i in range(self.ndim))
        return all(
            n == 1 or stride == step * self.dtype.itemsize
            for n, stride, step in zip(self.shape, self.strides, inner, strict=True)
        )


class Number(NamedTuple):
    """A number that differs from call to call: the argument at place `at`, converted to `kind`."""

    at: int
    kind: Callable[[Any], Any] | None = None


def float32(number: Any) -> Any:
    """Converts a number to float32 when a kernel is launched, or now if it is known."""
    return number._replace(kind=np.float32) if isinstance(number, Number) else np.float32(number)


def float64(number: Any) -> Any:
    """Converts a number to float64 when a kernel is launched, or now if it is known."""
    return number._replace(kind=np.float64) if isinstance(number, Number) else np.float64(number)


class Launch(NamedTuple):
    """How a kernel is launched: the kernel `name` of the CUDA source `file` with `threads` threads,
    rounded up to whole blocks. Above a limit there are fewer, and each computes several elements.

    `args` are the kernel's arguments: layouts of arrays of one library, None, which is NULL, and
    numbers of the types of the kernel's arguments (np.uint32, np.int32, or Numbers converted by
    `float32`), since nothing else converts them. T is the type of most arrays, G that of gradients;
    the source is compiled for these types.
    """

    file: str
    name: str
    threads: int
    args: Sequence[Any]
    T: str = FLOAT
    G: str = FLOAT


class _Prepared(NamedTuple):
    """A launch but for the values of a call: `values` has the other arguments of the kernel, and
    `places` says for each of those of the call where it goes, and how it is converted."""

    launch: Callable[[Sequence[Any]], None]
    values: list[Any]
    places: list[tuple[int, int, Callable[[Any], Any] | None]]


_KEPT = {int, bool, type(None)}
"""Types of arguments that tell launches apart by their values."""


def launched(plan: Callable[..., Launch | None]) -> Callable[..., Any]:
    """A decorator that makes the function of a CUDA kernel of `plan`, which says how it is launched
    for certain arguments, or returns None for those that the kernel does not take.

    The first argument is an array. The function returns NotImplemented for arguments that the
    kernel does not take, else None, which means to the caller that the work is done.
    """

    @lru_cache(maxsize=4096)
    def prepared(xp: Any, *kinds: Any) -> _Prepared | None:
        launch = plan(*map(_stand_in, range(len(kinds)), kinds)) if compiles(xp) else None
        return None if launch is None else _prepare(xp, launch)

    @wraps(plan)
    def loop(*args: Any) -> Any:
        array = type(args[0])
        kinds: list[Any] = [
            (a.shape, a.strides, a.dtype)
            if (kind := type(a)) is array
            else (a if kind in _KEPT else kind)
            for a in args
        ]
        ready = prepared(xp_of(args[0]), *kinds)
        if ready is None:
            return NotImplemented
        values = ready.values.copy()
        for i, at, convert in ready.places:
            values[i] = args[at] if convert is None else convert(args[at])
        ready.launch(values)
        return None

    return loop


def _stand_in(at: int, kind: Any) -> Any:
    """Returns what a plan gets in the place of an argument."""
    if isinstance(kind, tuple):
        return Layout(at, *kind)
    return Number(at) if isinstance(kind, type) else kind


def _prepare(xp: Any, launch: Launch) -> _Prepared:
    blocks = min(-(-launch.threads // THREADS), MOST_BLOCKS)
    function = _module(xp, launch.file, launch.T, launch.G).get_function(launch.name)
    places = [
        (i, a.at, a.kind if isinstance(a, Number) else None)
        for i, a in enumerate(launch.args)
        if isinstance(a, Layout | Number)
    ]
    values = [NULL if a is None else a for a in launch.args]
    return _Prepared(partial(function, (blocks,), (THREADS,)), values, places)


def counts(*numbers: int) -> list[np.uint32]:
    """Converts numbers to uint32, the type of the kernels' sizes."""
    return [np.uint32(n) for n in numbers]


def type_of(dtype: Any) -> str:
    """Returns the name of a dtype, such as "float32"."""
    return str(dtype.name)


@lru_cache(maxsize=16)
def compiles(xp: Any) -> bool:
    """True if this array library compiles CUDA kernels."""
    return hasattr(xp, "RawModule")


def fits(array: Layout) -> bool:
    """True if kernels take this array: its dtype and size."""
    return type_of(array.dtype) in FLOATS and 0 < array.size < MOST_NUMBERS


def are_dense(dtype: Any, *arrays: Layout | None) -> bool:
    """True if arrays (or None) are contiguous, of this dtype, neither empty nor too large."""
    return all(
        a is None or (a.dtype == dtype and a.is_contiguous and 0 < a.size < MOST_NUMBERS)
        for a in arrays
    )


def same_layout(first: Layout, *others: Layout | None) -> bool:
    """True if kernels take the arrays (or None), which have one dtype and size, and lie in memory
    in the same order, without gaps."""
    given = [first, *(a for a in others if a is not None)]
    if not fits(first) or any(a.dtype != first.dtype or a.size != first.size for a in given):
        return False
    if all(a.is_contiguous for a in given):
        return True
    order = sorted(range(first.ndim), key=lambda axis: -first.strides[axis])
    return all(a.shape == first.shape and a.transpose(order).is_contiguous for a in given)

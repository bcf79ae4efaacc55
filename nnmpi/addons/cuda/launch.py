"""Launches CUDA kernels. The array library compiles a source once for each process, device and set
of types.

    run("optimizers", "sgd", threads, (p, g, None, ...), T="float16")

Arrays are passed as pointers, None as NULL. Numbers must have the type of the kernel's argument
(np.float32, np.uint32, np.int32), since nothing else converts them.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of

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


@lru_cache(maxsize=1024)
def _function(xp: Any, file: str, name: str, T: str, G: str) -> Any:
    return _module(xp, file, T, G).get_function(name)


@lru_cache(maxsize=64)
def _module(xp: Any, file: str, T: str, G: str) -> Any:
    return xp.RawModule(code=source(file, T, G), options=OPTIONS)


def run(
    file: str, name: str, threads: int, args: Sequence[Any], T: str = FLOAT, G: str = FLOAT
) -> Any:
    """Launches the kernel `name` of the CUDA source `file` with `threads` threads, rounded up to
    whole blocks. Above a limit there are fewer, and each computes several elements.

    `args` are the kernel's arguments: arrays of one library, None, or NumPy scalars. T is the type
    of most arrays, G that of gradients; the source is compiled for these types.

    Returns None, which means to the caller that the work is done; a function that replaces a NumPy
    kernel but cannot take its arguments returns NotImplemented instead.
    """
    blocks = min(-(-threads // THREADS), MOST_BLOCKS)
    values = tuple(NULL if a is None else a for a in args)
    xp = xp_of(next(a for a in args if not isinstance(a, np.generic)))
    _function(xp, file, name, T, G)((blocks,), (THREADS,), values)


def counts(*numbers: int) -> list[np.uint32]:
    """Converts numbers to uint32, the type of the kernels' sizes."""
    return [np.uint32(n) for n in numbers]


def address(view: Array) -> np.uintp:
    """Returns the pointer to a view's first element; strides go separately."""
    return np.uintp(view.data.ptr)


@lru_cache(maxsize=64)
def type_of(dtype: Any) -> str:
    """Returns the name of a dtype, such as "float32"."""
    return str(dtype.name)


def fits(array: Array) -> bool:
    """True if kernels take this array: its library, dtype and size."""
    return (
        compiles(xp_of(array)) and type_of(array.dtype) in FLOATS and 0 < array.size < MOST_NUMBERS
    )


@lru_cache(maxsize=16)
def compiles(xp: Any) -> bool:
    """True if this array library compiles CUDA kernels."""
    return hasattr(xp, "RawModule")


def are_dense(dtype: Any, *arrays: Array | None) -> bool:
    """True if arrays (or None) are contiguous, of this dtype, neither empty nor too large."""
    return all(
        a is None or (a.dtype == dtype and a.flags.c_contiguous and 0 < a.size < MOST_NUMBERS)
        for a in arrays
    )


def same_layout(first: Array, *others: Array | None) -> list[Array | None] | None:
    """Returns the arrays with their axes in memory order, so that all of them are contiguous.

    None if they differ in dtype, size or layout, or have gaps.
    """
    given = [first, *(a for a in others if a is not None)]
    if not fits(first) or any(a.dtype != first.dtype or a.size != first.size for a in given):
        return None
    if all(a.flags.c_contiguous for a in given):
        return [first, *others]
    if any(a.shape != first.shape for a in given):
        return None
    order = sorted(range(first.ndim), key=lambda axis: -first.strides[axis])
    views = [a if a is None else a.transpose(order) for a in (first, *others)]
    return views if all(a is None or a.flags.c_contiguous for a in views) else None

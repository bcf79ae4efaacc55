"""Launching kernels: a source is compiled once a process, device and set of types, by the array
library.

    run("optimizers", "sgd", threads, (p, g, None, ...), T="float16")

Arrays are passed as pointers, None as NULL. Numbers need the type of the kernel's argument, since
nothing else converts them: np.float32, np.uint32, np.int32.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of

OPTIONS = ("--fmad=false",)
"""Options of the compiler: a product and a sum are rounded each, as in NumPy."""

THREADS = 256  # in a block
MOST_BLOCKS = 1 << 12  # threads of more would wait: those of so many take several numbers
MOST_NUMBERS = 1 << 31  # of an array: indices have 32 bits, and may pass the end by a step
NULL = np.uintp(0)
FOLDER = Path(__file__).parent
FLOAT, FLOATS = "float32", ("float32", "float16", "bfloat16")


def source(name: str, T: str = FLOAT, G: str = FLOAT) -> str:
    """The text of a file of this folder for numbers of these types, behind the text that it
    needs."""
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
    """Launch a kernel for arrays of one library; return None, as every loop that has done its
    work."""
    blocks = min(-(-threads // THREADS), MOST_BLOCKS)
    values = tuple(NULL if a is None else a for a in args)
    xp = xp_of(next(a for a in args if not isinstance(a, np.generic)))
    _function(xp, file, name, T, G)((blocks,), (THREADS,), values)


def counts(*numbers: int) -> list[np.uint32]:
    """Numbers in the type that kernels take."""
    return [np.uint32(n) for n in numbers]


def address(view: Array) -> np.uintp:
    """The pointer to a view with gaps, whose strides the kernel gets too."""
    return np.uintp(view.data.ptr)


@lru_cache(maxsize=64)
def type_of(dtype: Any) -> str:
    """The name of a type."""
    return str(dtype.name)


def fits(array: Array) -> bool:
    """Tell whether the library of an array compiles kernels, and they are made for its numbers."""
    return (
        _compiles(xp_of(array)) and type_of(array.dtype) in FLOATS and 0 < array.size < MOST_NUMBERS
    )


@lru_cache(maxsize=16)
def _compiles(xp: Any) -> bool:
    return hasattr(xp, "RawModule")


def are_dense(dtype: Any, *arrays: Array | None) -> bool:
    """Tell whether all arrays but None have this type and no gaps, and are neither empty nor too
    large."""
    return all(
        a is None or (a.dtype == dtype and a.flags.c_contiguous and 0 < a.size < MOST_NUMBERS)
        for a in arrays
    )


def alike(first: Array, *others: Array | None) -> list[Array | None] | None:
    """The arrays with their axes in the order of memory; None if they differ in type, size or
    order, or have gaps."""
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

"""Launching kernels: a source is compiled once a process and device, by the array library.

    run("optimizers", "sgd", threads, (p, g, None, ...))

Arrays are passed as pointers, None as NULL. Numbers need the type of the kernel's argument, since
nothing else converts them: np.float32, np.uint32, np.int32.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.backend import Array, xp_of

OPTIONS = ("--fmad=false",)
"""No product and sum is rounded once instead of twice: NumPy rounds both."""

THREADS = 256  # in a block
MOST_BLOCKS = 1 << 12  # threads of more would wait: those of so many take several numbers
MOST_NUMBERS = 1 << 31  # of an array: indices have 32 bits, and may pass the end by a step
NULL = np.uintp(0)
FOLDER = Path(__file__).parent


def source(name: str) -> str:
    """The text of a file of this folder, with what it needs before it."""
    files = FOLDER / "common.cuh", FOLDER / f"{name}.cu"
    texts = (path.read_text(encoding="utf-8") for path in files)
    return "".join((f"#define THREADS {THREADS} /* in a block */\n", *texts))


@lru_cache(maxsize=256)
def _function(xp: Any, file: str, name: str) -> Any:
    return xp.RawModule(code=source(file), options=OPTIONS).get_function(name)


def run(file: str, name: str, threads: int, args: Sequence[Any]) -> None:
    """Launch a kernel for arrays of the library of its first argument."""
    blocks = min(-(-threads // THREADS), MOST_BLOCKS)
    values = tuple(NULL if a is None else a for a in args)
    _function(xp_of(args[0]), file, name)((blocks,), (THREADS,), values)


def fits(array: Array) -> bool:
    """Whether the library of an array compiles kernels, and they are made for that array."""
    return _compiles(xp_of(array)) and is_plain(array)


@lru_cache(maxsize=16)
def _compiles(xp: Any) -> bool:
    return hasattr(xp, "RawModule")


def all_fit(first: Array, *others: Array | None) -> bool:
    """Whether arrays, of which others may be None, fit, and have as many numbers as the first."""
    return fits(first) and all(a is None or (is_plain(a) and a.size == first.size) for a in others)


def is_plain(a: Array, char: str = "f") -> bool:
    """Whether an array has this type, float32, is contiguous, and neither empty nor too large."""
    found: bool = a.dtype.char == char and a.flags.c_contiguous and 0 < a.size < MOST_NUMBERS
    return found

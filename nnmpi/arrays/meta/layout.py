"""Layout: how arrays without numbers lie in memory, as the arrays do that they stand for."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PROT_READ, mmap
from typing import Any, NoReturn

import numpy as np
from numpy.lib.stride_tricks import as_strided


class NumbersReadError(Exception):
    """Numbers were asked for that an array does not have."""


def refuse(what: str) -> NoReturn:
    """Raises NumbersReadError."""
    raise NumbersReadError(f"{what} takes numbers")


@lru_cache
def addresses(bits: int) -> mmap:
    """Reserve 2^bits bytes of addresses, which take no memory.

    No more than the largest array needs: MPI maps memory at a fixed address when it starts.
    """
    return mmap(-1, 1 << bits, flags=MAP_PRIVATE | MAP_ANONYMOUS, prot=PROT_READ)


def nesting(array: Any) -> tuple[int, ...]:
    """The axes of an array, that of long strides first, for `strides` to make these again: of equal
    ones, axes of length 1 are inside."""
    steps = [(-abs(step), n == 1) for step, n in zip(array.strides, array.shape, strict=True)]
    return tuple(sorted(range(array.ndim), key=steps.__getitem__))


def strides(shape: Sequence[int], itemsize: int, order: Iterable[int]) -> tuple[int, ...]:
    """Those of an array without gaps, whose axes lie in this order."""
    found, step = [0] * len(shape), itemsize
    for k in reversed([*order]):
        found[k] = step
        step *= max(shape[k], 1)
    return tuple(found)


def small(value: Any) -> Any:
    """An array with the type and layout of this one, whose axes have length 2 at most; what is no
    array as it is."""
    if not isinstance(value, np.ndarray):
        return value
    shape = [min(n, 2) for n in value.shape]
    gap = 1 if value.flags.forc else 2  # NumPy has other loops for what has gaps
    steps = strides(shape, gap * value.itemsize, nesting(value))
    kept = [step if there else 0 for step, there in zip(steps, value.strides, strict=True)]
    memory = np.ones(gap << value.ndim, value.dtype)
    found = as_strided(memory, shape, kept)
    return found[tuple(slice(None, None, -1 if step < 0 else 1) for step in value.strides)]


def owner(array: Any) -> Any:
    """The array that owns the memory of this one."""
    while isinstance(getattr(array, "base", None), np.ndarray):
        array = array.base
    return array

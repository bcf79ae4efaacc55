"""Checks of what users pass: arrays, lengths and types, parts, tags, names of algorithms."""

import operator
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.algorithms import ALL_GATHERS, BROADCASTS, REDUCE_SCATTERS, REDUCES
from nnmpi.collectives.step import Algorithm, bounds
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import TAGS

Array: TypeAlias = NDArray[Any]
Parts: TypeAlias = Sequence[int] | None
"""The lengths of the parts of all ranks; None stands for even ones."""

LONGEST_TEXT = 60  # characters of the lengths of parts in the call log


FAMILIES: Mapping[str, Mapping[str, Algorithm]] = {
    "broadcast": BROADCASTS,
    "reduce": REDUCES,
    "reduce_scatter": REDUCE_SCATTERS,
    "all_gather": ALL_GATHERS,
    "agree": ALL_GATHERS,
    "carry_out": {},  # an algorithm of the user
}
"""The algorithms of each operation."""
MOVES_ONLY = "broadcast", "all_gather", "agree"
"""Operations that add no numbers."""


def unknown_name(name: str, operation: str, names: tuple[str, ...]) -> ValueError:
    """The error for a name that is none of the names of an operation's algorithms."""
    return ValueError(f"{operation} has no algorithm {name!r}: choose one of {', '.join(names)}")


def checked_rank(rank: int, size: int) -> int:
    """The number of a rank as an int."""
    rank = operator.index(rank)
    if not 0 <= rank < size:
        raise ValueError(f"there is no rank {rank} of {size}: use 0 to {size - 1}")
    return rank


def checked_tag(tag: int) -> int:
    """The tag as an int; every MPI has so many."""
    tag = operator.index(tag)
    if not 0 <= tag < TAGS - 1:  # the last one is that of roll calls
        raise ValueError(f"tag {tag} is out of range: use 0 to {TAGS - 2}")
    return tag


def flat(array: Any, call: str) -> Array:
    """The array as one row: its own memory where that is in order, else a copy (`put_back`).

    In order is what is contiguous and aligned: MPI knows no types of unaligned numbers.
    """
    check_array(array, call)
    row: Array = np.asarray(array)  # subclasses (matrix, masked array) index and reshape otherwise
    if not row.flags.writeable:
        raise ValueError(f"{call} works in place, and this array is read-only: pass a copy")
    if not row.flags.carray:  # contiguous, aligned, writeable
        row = np.array(row, order="C")
    return row if row.ndim == 1 else row.reshape(-1)


def put_back(steps: Steps, row: Array, array: Array) -> Steps:
    """The steps, and then, where `flat` has made a copy, its values in the user's array."""
    yield from steps
    if not array.flags.carray:
        array[...] = row.reshape(array.shape)


def check_array(array: Any, call: str) -> None:
    """Only NumPy's own arrays have memory that MPI can use."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{call} takes a NumPy array, not {type(array).__name__}")
    check_dtype(array.dtype, call)


def checked_size(n: int, dtype: Any, call: str) -> tuple[int, np.dtype[Any]]:
    """A length and a type, if memory can hold such numbers."""
    n, dtype = operator.index(n), np.dtype(dtype)
    if n < 0:
        raise ValueError(f"{call} cannot hold {n} numbers: use 0 or more")
    check_dtype(dtype, call)
    return n, dtype


def check_dtype(dtype: np.dtype[Any], call: str) -> None:
    """Only numbers in this machine's byte order can be summed, or sent as bytes.

    NumPy knows bfloat16 only from the package ml_dtypes, if that is installed.
    """
    if not (dtype.kind in "biufc" or dtype.name == "bfloat16") or not dtype.isnative:
        raise TypeError(
            f"{call} takes numbers in this machine's byte order, not {dtype}: convert with astype"
        )


def accumulator(dtype: np.dtype[Any], narrow: bool = False) -> np.dtype[Any]:
    """The type of partial sums of such numbers: float32 for 16-bit floats, if not `narrow`."""
    half = dtype.itemsize == 2 and dtype.kind in "fV"
    return np.dtype(np.float32) if half and not narrow else dtype


def as_integers(row: Array) -> Array:
    """16-bit floats as integers of that size, for collectives that only move them."""
    return row if accumulator(row.dtype) == row.dtype else row.view(np.uint16)


def bounds_of(parts: Sequence[int] | None, n: int, size: int, call: str) -> tuple[int, ...]:
    """The first element of each rank's part of n elements, and n; None stands for even parts."""
    if parts is None:
        return bounds(n, size)
    lengths = [operator.index(length) for length in parts]
    if len(lengths) != size:
        raise ValueError(
            f"{call} got {len(lengths)} parts for {size} ranks: pass one length a rank"
        )
    if min(lengths) < 0:
        rank = lengths.index(min(lengths))
        raise ValueError(
            f"{call}: the part of rank {rank} has length {lengths[rank]}: use 0 or more"
        )
    if sum(lengths) != n:
        raise ValueError(f"{call}: the parts sum to {sum(lengths)}, but the array has {n} elements")
    return tuple(accumulate(lengths, initial=0))


def parts_text(parts: Sequence[int]) -> str:
    """The lengths of parts, for the call log; of many the first ones and a checksum of all."""
    text = "+".join(map(str, parts))
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]}... (checksum {crc32(text.encode()):08x})"
    return f"parts {text}"

"""Checks of user arguments: arrays, lengths, types, parts, ranks, tags and names of algorithms."""

import operator
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, TypeAlias
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from nnmpi.arrays.backend import from_dlpack
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import Algorithm, bounds
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import TAGS

Array: TypeAlias = NDArray[Any]
Parts: TypeAlias = Sequence[int] | None
"""The length of each rank's part of an array; None stands for even parts."""

LONGEST_TEXT = 60  # characters of the lengths of parts in the call log


def algorithm_of(operation: str, name: str) -> tuple[Algorithm, bool]:
    """Returns an operation's algorithm, and whether the operation sums or only copies."""
    collective = Collective[operation.upper()]
    if name not in collective.algorithms:
        raise unknown_name(name, operation, tuple(collective.algorithms))
    return collective.algorithms[name], True in collective.passes


def unknown_name(name: str, operation: str, names: tuple[str, ...]) -> ValueError:
    """Returns the ValueError for a name that is not among an operation's algorithms."""
    return ValueError(f"{operation} has no algorithm {name!r}: choose one of {', '.join(names)}")


def checked_rank(rank: int, size: int) -> int:
    """Returns the rank number as an int; raises ValueError unless 0 <= rank < size."""
    rank = operator.index(rank)
    if not 0 <= rank < size:
        raise ValueError(f"rank {rank} is out of range: the ranks of this Comm are 0 to {size - 1}")
    return rank


class CallTag(int):
    """The tag of the messages of which a collective is made, from `Comm.message_tag`."""


def checked_tag(tag: int) -> int:
    """Returns the tag as an int; raises ValueError unless 0 <= tag <= TAGS - 2, or a CallTag."""
    if isinstance(tag, CallTag):
        return tag
    tag = operator.index(tag)
    if not 0 <= tag < TAGS - 1:  # roll calls use the last one
        raise ValueError(f"tag {tag} is out of range: use 0 to {TAGS - 2}")
    return tag


def flat(array: Any, call: str) -> Array:
    """Returns the array as a 1-D array: a view if it is C-contiguous and aligned, else a copy.

    MPI has no types for unaligned elements. `put_back` writes a copy's result to the user's array.
    """
    row: Array = np.asarray(host_array(array, call))  # matrix and masked array index differently
    if not row.flags.writeable:
        raise ValueError(f"{call} works in place, but this array is read-only: pass a copy")
    if not row.flags.carray:  # contiguous, aligned, writeable
        row = np.array(row, order="C")
    return row if row.ndim == 1 else row.reshape(-1)


def put_back(steps: Steps, row: Array, array: Array) -> Steps:
    """Carries out an operation (a generator of requests) on `row`, the flat form of `array`, then
    copies the result into `array` if `flat` had made a copy."""
    yield from steps
    target = host_array(array, "put_back")
    if not target.flags.carray:
        target[...] = row.reshape(target.shape)


def array_in(value: Any) -> Any:
    """Returns the array of a tensor or parameter; returns any other value unchanged."""
    return getattr(value, "array", value)


def host_array(array: Any, call: str) -> Array:
    """Returns an array or tensor, also of another library, in host memory, without a copy. Raises
    TypeError, which names the method `call`, for arrays on a GPU or without numbers."""
    array = array_in(array)
    host = array if isinstance(array, np.ndarray) else _shared(array, call)
    check_dtype(host.dtype, call)
    return host


def _shared(array: Any, call: str) -> Array:
    kind = type(array).__name__
    try:
        shared = from_dlpack(array)
    except TypeError as error:
        reason = f": {error}" if hasattr(array, "__dlpack__") else ""
        raise TypeError(f"{call} takes a NumPy array, not {kind}{reason}") from error
    if not isinstance(shared, np.ndarray):
        raise TypeError(
            f"{call} takes an array in host memory, and this {kind} is on a GPU: use "
            "nnmpi.distributed, or copy it to the host"
        )
    return shared


def checked_size(n: int, dtype: Any, call: str) -> tuple[int, np.dtype[Any]]:
    """Returns `n` and `dtype`; raises unless n >= 0 and the dtype can be summed."""
    n, dtype = operator.index(n), np.dtype(dtype)
    if n < 0:
        raise ValueError(f"{call} cannot hold {n} elements: use 0 or more")
    check_dtype(dtype, call)
    return n, dtype


def check_dtype(dtype: np.dtype[Any], call: str) -> None:
    """Raises TypeError unless elements are numbers (or booleans) in the byte order of this machine:
    others can be neither summed nor sent as bytes. NumPy knows bfloat16 only through ml_dtypes."""
    if not (dtype.kind in "biufc" or dtype.name == "bfloat16") or not dtype.isnative:
        raise TypeError(
            f"{call} takes numbers in this machine's byte order, not {dtype}: convert with astype"
        )


def accumulator(dtype: np.dtype[Any], narrow: bool = False) -> np.dtype[Any]:
    """The dtype of partial sums of `dtype`: float32 for 16-bit floats unless `narrow`."""
    half = dtype.itemsize == 2 and dtype.kind in "fV"
    return np.dtype(np.float32) if half and not narrow else dtype


def as_integers(row: Array) -> Array:
    """Returns a 16-bit float array viewed as uint16, for collectives that only move elements:
    `Interpreter` would convert 16-bit floats to float32."""
    return row if accumulator(row.dtype) == row.dtype else row.view(np.uint16)


def bounds_of(parts: Sequence[int] | None, n: int, size: int, call: str) -> tuple[int, ...]:
    """The first element of each rank's part of n elements, then n; even parts if `parts` is None.
    Raises ValueError unless `parts` are `size` lengths that add up to n."""
    if parts is None:
        return bounds(n, size)
    lengths = [operator.index(length) for length in parts]
    if len(lengths) != size:
        raise ValueError(
            f"{call} got {len(lengths)} parts for {size} ranks: pass one length per rank"
        )
    if min(lengths) < 0:
        rank = lengths.index(min(lengths))
        raise ValueError(
            f"{call}: the part of rank {rank} has length {lengths[rank]}: use 0 or more"
        )
    if sum(lengths) != n:
        raise ValueError(
            f"{call}: parts sum to {sum(lengths)}, but the array has {n} elements: they must agree"
        )
    return tuple(accumulate(lengths, initial=0))


def parts_text(parts: Sequence[int]) -> str:
    """The lengths of parts as text for the call log; a long list is cut and gets a checksum."""
    text = "+".join(map(str, parts))
    if len(text) > LONGEST_TEXT:
        text = f"{text[: LONGEST_TEXT // 2]}... (checksum {crc32(text.encode()):08x})"
    return f"parts {text}"

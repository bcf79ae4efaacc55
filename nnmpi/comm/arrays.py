"""From the array that a user passes to the flat buffer that collectives work on."""

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.comm.progress.steps import Steps, then

Array: TypeAlias = NDArray[Any]


def flat(array: Any, call: str) -> Array:
    """The array as one row: its own memory where that is in order, else a copy (`put_back`).

    In order is what is contiguous and aligned: MPI knows no types of unaligned numbers.
    """
    check_array(array, call)
    if type(array) is not np.ndarray:
        array = np.asarray(array)  # subclasses (matrix, masked array) index and reshape otherwise
    if not array.flags.carray:  # contiguous, aligned and writeable
        if not array.flags.writeable:
            raise ValueError(f"{call} works in place, and this array is read-only: pass a copy")
        array = np.array(array, order="C")
    row: Array = array.reshape(-1)
    return row


def check_array(array: Any, call: str) -> None:
    """Only NumPy's own arrays have memory that MPI can use."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{call} takes a NumPy array, not {type(array).__name__}")
    check_dtype(array.dtype, call)


def check_dtype(dtype: np.dtype[Any], call: str) -> None:
    """Only numbers in this machine's byte order can be summed, or sent as bytes."""
    if not (dtype.kind in "biufc" or is_bfloat16(dtype)) or not dtype.isnative:
        raise TypeError(
            f"{call} takes numbers in this machine's byte order, not {dtype}: convert with astype"
        )


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """NumPy knows the type only from the package ml_dtypes, if that is installed."""
    return dtype.name == "bfloat16"


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which numbers of this one are summed: float32 for 16-bit floats."""
    half = dtype.itemsize == 2 and dtype.kind in "fV"
    return np.dtype(np.float32) if half else dtype


def put_back(steps: Steps, row: Array, array: Array) -> Steps:
    """The steps, and then, where `flat` has made a copy, its values in the user's array."""
    if array.flags.carray:
        return steps
    return then(steps, lambda: array.__setitem__(..., row.reshape(array.shape)))


def as_integers(row: Array) -> Array:
    """16-bit floats as integers of that size, for collectives that only move them."""
    return row if accumulator(row.dtype) == row.dtype else row.view(np.uint16)

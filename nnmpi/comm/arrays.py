"""From the array that a user hands over to the flat buffer that collectives work on."""

from collections.abc import Callable
from typing import Any

import numpy as np

from nnmpi.comm.allreduce.interpreter import Array, Steps, wide


def flat(array: Any, call: str) -> Array:
    """The array as one row: its own memory if that is in order, else a copy (see `put_back`)."""
    check_array(array, call)
    if type(array) is not np.ndarray:
        array = np.asarray(array)  # a matrix or a masked array has ways of its own
    if not array.flags.writeable:
        raise ValueError(f"{call} works in place, and this array is read-only: pass a copy")
    row: Array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return row.reshape(-1)


def check_array(array: Any, call: str) -> None:
    """Only NumPy's own have memory that MPI may work on."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{call} takes a NumPy array, not {type(array).__name__}")
    check_dtype(array.dtype, call)


def check_dtype(dtype: np.dtype[Any], call: str) -> None:
    """Only numbers as this machine has them can be summed, or sent as bytes."""
    if not (dtype.kind in "biufc" or is_bfloat16(dtype)) or not dtype.isnative:
        raise TypeError(
            f"{call} takes numbers in this machine's byte order, not {dtype}: convert with astype"
        )


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """NumPy knows the type only from the package ml_dtypes, if that is installed."""
    return dtype.name == "bfloat16"


def put_back(steps: Steps, flat: Array, array: Array) -> Steps:
    """The steps, and then what they made of the copy, where the array's memory is not in order."""
    if array.flags.c_contiguous:
        return steps
    return _and_then(steps, lambda: array.__setitem__(..., flat.reshape(array.shape)))


def _and_then(steps: Steps, f: Callable[[], None]) -> Steps:
    yield from steps
    f()


def words(flat: Array) -> Array:
    """The same memory as integers, where the numbers are only moved and need no finer sums."""
    return flat if wide(flat.dtype) == flat.dtype else flat.view(np.uint16)


def pieces(data: Array, most: int) -> list[Array]:
    """Cut so that none has more elements than that; one empty piece if there is nothing."""
    return [data[i : i + most] for i in range(0, max(data.size, 1), most)]

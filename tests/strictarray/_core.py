"""What CuPy has under the same name: how products are computed, for the whole process."""

from types import SimpleNamespace

import numpy as np

_routines_linalg = SimpleNamespace(COMPUTE_TYPE_DEFAULT=1, COMPUTE_TYPE_TF32=7)
_types = dict.fromkeys("efd", 1)


def set_compute_type(dtype: object, compute_type: int) -> None:
    char = np.dtype(dtype).char
    if compute_type == 7 and char != "f":
        raise ValueError(f"TF32 is for float32, not {char}")
    _types[char] = compute_type


def get_compute_type(dtype: object) -> int:
    return _types[np.dtype(dtype).char]

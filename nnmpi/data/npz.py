"""Data sets from a NumPy archive, FILE.npz."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import numpy as np

from nnmpi.data.dataset import Dataset, DatasetRequest, from_arrays, kept_as
from nnmpi.data.files import check_room
from nnmpi.data.inputs import Inputs
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import RefusedError, reading

SAMPLES, LABELS = ("x", "x_test"), ("y", "y_test")
REMEDY = "write it again with numpy.savez(file, x=..., y=...), plain numbers only"


def npz(request: DatasetRequest) -> Dataset:
    """Loads a NumPy archive with the arrays x and y, and x_test and y_test if it has them; else a
    fifth of the rows is held out for tests.

    Several inputs are named x.0, x.1, ... for a model that is called as model(*x), or x.NAME, ...
    for one that is called as model(**x).

    Nothing is unpickled, so a file of unknown origin can do no harm.
    """
    path = Path(os.path.expanduser(request.argument))
    arrays = _read(path)
    x, x_test = (_inputs(arrays, key, path) for key in SAMPLES)
    y, y_test = map(arrays.get, LABELS)
    missing = [key for key, array in (("x", x), ("y", y)) if array is None]
    if missing:
        raise ValueError(
            f"{shown(path)} has no array {' and no '.join(missing)}; save it with "
            "numpy.savez(file, x=..., y=...), and x_test=..., y_test=... if there are test data"
        )
    return from_arrays(
        x, y, x_test, y_test, request.seed, shown(path.name), request.ignore_index, reuse=True
    )


def _inputs(arrays: Mapping[str, np.ndarray], key: str, path: Path) -> Inputs | None:
    """Returns the inputs that a file has under `key` (x or x_test): the array `key`; or `key`.0,
    `key`.1, ... as a tuple, or `key`.NAME as a dict; None if there is none."""
    named = {name[len(key) + 1 :]: a for name, a in arrays.items() if name.startswith(f"{key}.")}
    if not named:
        return arrays.get(key)
    numbers = [str(i) for i in range(len(named))]
    is_tuple = named.keys() == {*numbers}
    if key in arrays or (not is_tuple and any(name.isdecimal() for name in named)):
        names = ", ".join(shown(name) for name in arrays if name.partition(".")[0] == key)
        raise ValueError(
            f"{shown(path)} has the arrays {names}; give {key} alone, or {key}.0, {key}.1 and so "
            f"on, or names such as {key}.words"
        )
    return tuple(named[i] for i in numbers) if is_tuple else named


def _read(path: Path) -> dict[str, np.ndarray]:
    """Returns the arrays of a file whose names nnmpi knows: x, y, x_test and y_test, and inputs
    such as x.0 or x_test.mask. Others are not read."""
    if not path.is_file():
        raise ValueError(f"{shown(path)} is not a file; give the path of an .npz file to --data")
    with reading(path, REMEDY):
        if not is_zipfile(path):
            size = f"its {path.stat().st_size:,} bytes are not a zip archive"
            raise RefusedError(f"{shown(path)} cannot be read as an .npz file: {size}; {REMEDY}")
        with np.load(path, allow_pickle=False) as archive:
            names = [n for n in archive.files if n in LABELS or n.partition(".")[0] in SAMPLES]
            sizes = [archive.zip.getinfo(f"{name}.npy").file_size for name in names]
            check_room(path, "its arrays have", sum(sizes))
            return {name: _array(archive, name, path) for name in names}


def _array(archive: Any, name: str, path: Path) -> np.ndarray:
    """Returns an archive's array in the dtype in which it will be stored."""
    with reading(f"{path}: {name}.npy", REMEDY), np.errstate(over="ignore"):
        try:
            array = np.asarray(archive[name])  # a member that is not an array is returned as bytes
        except ValueError as error:
            if "allow_pickle" not in str(error):
                raise
            problem = f"{shown(path)}: {name} holds Python objects, such as rows of unequal lengths"
            raise RefusedError(f"{problem}; {REMEDY}") from None
        return array.astype(kept_as(array.dtype, name in LABELS), copy=False)

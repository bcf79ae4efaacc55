"""Data sets from a NumPy archive, FILE.npz."""

import math
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo, is_zipfile

import numpy as np

from nnmpi.data.dataset import HELD_OUT, Dataset, DatasetRequest, from_arrays, kept_as
from nnmpi.data.files import DEFLATE, RefusedError, check_room, read_array, read_npy_header, reading
from nnmpi.data.inputs import Inputs
from nnmpi.quoting import shown

SAMPLES, LABELS = ("x", "x_test"), ("y", "y_test")
REMEDY = "write it again with numpy.savez(file, x=..., y=...), plain numbers only"
RATIOS = {ZIP_STORED: 1, ZIP_DEFLATED: DEFLATE}  # bytes that one byte in the file stands for


def npz(request: DatasetRequest) -> Dataset:
    """The arrays x and y of a file, and x_test and y_test if it has them.

    Several inputs are x.0, x.1, ... for a model that is called as model(*x), or x.NAME, ... for
    one that is called as model(**x).

    Nothing is unpickled, so a file of unknown origin can do no harm.
    """
    path = Path(os.path.expanduser(request.argument))
    arrays = _read(path)
    x, x_test = (_inputs(arrays, key, path) for key in SAMPLES)
    y, y_test = map(arrays.get, LABELS)
    missing = [key for key, found in (("x", x), ("y", y)) if found is None]
    if missing:
        raise ValueError(
            f"{shown(path)} has no array {' and no '.join(missing)}; save it with "
            "numpy.savez(file, x=..., y=...), and x_test=..., y_test=... if there are test data"
        )
    return from_arrays(
        x, y, x_test, y_test, request.seed, shown(path.name), request.ignore_index, own=True
    )


def _inputs(arrays: Mapping[str, np.ndarray], key: str, path: Path) -> Inputs | None:
    """The array `key`, or several: those with a number or a name behind it."""
    found = {name[len(key) + 1 :]: a for name, a in arrays.items() if name.startswith(f"{key}.")}
    if not found:
        return arrays.get(key)
    numbers = [str(i) for i in range(len(found))]
    is_tuple = found.keys() == {*numbers}
    if key in arrays or (not is_tuple and any(name.isdecimal() for name in found)):
        names = ", ".join(shown(name) for name in arrays if name.partition(".")[0] == key)
        raise ValueError(
            f"{shown(path)} has the arrays {names}; give {key} alone, or {key}.0, {key}.1 and so "
            f"on, or names such as {key}.words"
        )
    return tuple(found[i] for i in numbers) if is_tuple else found


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the file that have one of our names."""
    if not path.is_file():
        raise ValueError(f"{shown(path)} is not a file; give the path of an .npz file to --data")
    with reading(path, REMEDY):
        if not is_zipfile(path):
            size = f"its {path.stat().st_size:,} bytes are not a zip archive"
            raise RefusedError(f"{shown(path)} cannot be read as an .npz file: {size}; {REMEDY}")
        with ZipFile(path) as archive:
            files = [name for name in archive.namelist() if name.endswith(".npy")]
            keys = [name.removesuffix(".npy") for name in dict.fromkeys(files)]
            ours = [key for key in keys if key in LABELS or key.partition(".")[0] in SAMPLES]
            headers = {key: _header(archive, archive.getinfo(f"{key}.npy"), path) for key in ours}
            has_test = any(key.startswith(SAMPLES[1]) for key in ours)
            count = sum(header.kept for header in headers.values())
            check_room(path, "arrays that need", count if has_test else int(count * HELD_OUT))
            return {key: _array(archive, header) for key, header in headers.items()}


class Header(NamedTuple):
    """What the header of an array announces, and the type in which the array is kept."""

    member: ZipInfo
    name: str
    length: int  # of the header
    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    into: np.dtype[Any]

    @property
    def kept(self) -> int:
        """The bytes of the array in memory."""
        return math.prod(self.shape) * self.into.itemsize


def _header(archive: ZipFile, member: ZipInfo, path: Path) -> Header:
    """The header of an array."""
    name = f"{path}: {member.filename}"
    with reading(name, REMEDY), archive.open(member) as stream, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the parser
        if member.compress_type not in RATIOS:  # others decompress 4 KB to hundreds of MB at once
            raise RefusedError(f"{shown(name)} is not compressed by deflate; {REMEDY}")
        shape, is_fortran, dtype = read_npy_header(stream)
        if dtype.hasobject or not dtype.itemsize:
            raise ValueError("it holds Python objects, or elements of 0 bytes")
        length = stream.tell()
    into = kept_as(dtype, is_label=member.filename.partition(".")[0] in LABELS)
    return Header(member, name, length, shape, is_fortran, dtype, into)


def _array(archive: ZipFile, header: Header) -> np.ndarray:
    """An array of the archive, in the type in which it is kept."""
    member, name, length, shape, is_fortran, dtype, into = header
    with reading(name, REMEDY), archive.open(member) as stream:
        stream.read(length)
        most = min(member.file_size, member.compress_size * RATIOS[member.compress_type])
        if is_fortran:
            return read_array(stream, name, shape[::-1], most, dtype, into).T
        return read_array(stream, name, shape, most, dtype, into)

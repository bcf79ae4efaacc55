"""Data sets from a NumPy archive, FILE.npz."""

import math
import os
from pathlib import Path
from typing import IO, Any, NamedTuple, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, ZipFile, ZipInfo, is_zipfile

import numpy as np
from numpy.lib import format as npy

from nnmpi.data.arrays import from_arrays
from nnmpi.data.dataset import Dataset, Request
from nnmpi.data.files import (
    DEFLATE,
    Bounded,
    check_room,
    read_array,
    reading,
)
from nnmpi.quoting import shown

KEYS = ("x", "y", "x_test", "y_test")
REMEDY = "write it again with numpy.savez(file, x=..., y=...), plain numbers only"
RATIOS = {ZIP_STORED: 1, ZIP_DEFLATED: DEFLATE}  # bytes that one byte in the file stands for


class Header(NamedTuple):
    """What the first bytes of an .npy file announce."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]


def npz(request: Request) -> Dataset:
    """The arrays x and y of a file, and x_test and y_test if it has them.

    Nothing is unpickled, so a file of unknown origin can do no harm.
    """
    path = Path(os.path.expanduser(request.argument))
    arrays = _read(path)
    missing = [key for key in KEYS[:2] if key not in arrays]
    if missing:
        raise ValueError(
            f"{shown(path)} has no array {' and no '.join(missing)}; save it with "
            "numpy.savez(file, x=..., y=...), and x_test=..., y_test=... if there are test data"
        )
    x, y, x_test, y_test = (arrays.get(key) for key in KEYS)
    return from_arrays(x, y, x_test, y_test, request.seed, shown(path.name))


def _read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the file that have one of our names."""
    if not path.is_file():
        raise ValueError(f"{shown(path)} is not a file; give the path of an .npz file to --data")
    with reading(path, "cannot be read as an .npz file", REMEDY):
        if not is_zipfile(path):
            raise ValueError(f"its {path.stat().st_size:,} bytes are not a zip archive")
        with ZipFile(path) as archive:
            members = {key: f"{key}.npy" for key in KEYS}
            there = {key: m for key, m in members.items() if m in archive.namelist()}
            return {key: _array(archive, archive.getinfo(m), path) for key, m in there.items()}


def _array(archive: ZipFile, member: ZipInfo, path: Path) -> np.ndarray:
    """An array of the archive: the bytes that its header announces, if the archive has as many."""
    with archive.open(member) as stream:
        header = _header(stream)
        count = math.prod(header.shape) * header.dtype.itemsize
        body = member.file_size - stream.tell()
        if count != body:
            raise ValueError(
                f"{member.filename} announces {header.shape} of {header.dtype}, {count:,} bytes, "
                f"but {body:,} bytes follow"
            )
        check_room(f"{path}: {member.filename}", header.shape, count)
        ratio = RATIOS.get(member.compress_type)
        if ratio is not None and count > member.compress_size * ratio:
            raise ValueError(
                f"{member.compress_size:,} compressed bytes of {member.filename} cannot hold "
                f"{count:,}"
            )
        shape = header.shape[::-1] if header.is_fortran else header.shape
        array, there = read_array(stream, path, shape, header.dtype)
        if there < count or stream.read(1):  # reading on compares the checksum
            raise EOFError(f"{member.filename} has {there:,} of {count:,} bytes")
        return array.T if header.is_fortran else array


def _header(stream: IO[bytes]) -> Header:
    """The header of an .npy file. Version 3 is for names of columns that are not Latin."""
    bounded = cast("IO[bytes]", Bounded(stream))
    version = npy.read_magic(bounded)
    if version == (1, 0):
        header = Header(*npy.read_array_header_1_0(bounded))
    elif version == (2, 0):
        header = Header(*npy.read_array_header_2_0(bounded))
    else:
        raise ValueError(f"an array in it has version {version} of the format, not 1 or 2")
    if header.dtype.hasobject:
        raise ValueError("an array in it holds Python objects")
    if min(header.shape, default=0) < 0:
        raise ValueError(f"an array in it has the shape {header.shape}")
    return header

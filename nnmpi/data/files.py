"""Data files: errors as one line with the remedy, and reading at most what a header announces.

A few MB of compressed zeros are GBs. So no file is decompressed as a whole: the header is read,
then the array that it announces, if that fits into memory and into so small a file.
"""

import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from nnmpi.cgroup import memory_limit
from nnmpi.quoting import shown
from nnmpi.user_files import check_regular, parsed

REMEDY = "delete it and run again with --download, or put a good copy in its place"
BYTES = np.dtype("uint8")
CHUNK = 1 << 20
JSON_BYTES = 16 << 20  # of a file of JSON, at most
DEFLATE = 1032  # bytes that one byte of deflate stands for, at most
NPY_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


class RefusedError(ValueError):
    """What is wrong with a file, in words that name it."""


@contextmanager
def reading(file: object, remedy: str = REMEDY) -> Iterator[None]:
    """Raises RefusedError if the file is damaged or cannot be read."""
    try:
        yield
    except (RefusedError, MemoryError, AttributeError, NameError, AssertionError):
        raise  # the last three are mistakes of this code, not of the file
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        is_whole = getattr(error, "errno", None) or type(error) is RuntimeError  # has a password
        fault = "cannot be read" if is_whole else "is damaged"
        text = getattr(error, "strerror", None) or str(error)  # else the file is named twice
        reason = shown(" ".join(text.split())) or type(error).__name__
        raise RefusedError(f"{shown(file)} {fault}: {reason}; {remedy}") from None


def read_json(path: Path, remedy: str) -> Any:
    """What a file of JSON says; raises RefusedError if it is none, no regular file, or too long."""
    with reading(path, remedy):
        check_regular(path, JSON_BYTES)
        return parsed(json.loads, path.read_bytes())


class Bounded:
    """A binary stream that reads little at once: a damaged header may ask for gigabytes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.seek, self.tell = stream.seek, stream.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= CHUNK:
            raise ValueError(f"a header in it announces {size:,} bytes of names")
        data: bytes = self._stream.read(size)
        return data


def read_npy_header(stream: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether it is in Fortran's order, and type of an array as numpy.save writes it.

    Version 3 of the format is for names of columns, not Latin.
    """
    bounded = cast("IO[bytes]", Bounded(stream))
    version = npy.read_magic(bounded)
    if version not in NPY_HEADERS:
        raise ValueError(f"it has version {version} of the format, not 1 or 2")
    try:
        return NPY_HEADERS[version](bounded)
    except MemoryError:
        raise ValueError("its header has too many brackets or operators") from None


def read_array(
    stream: Any,
    file: object,
    shape: Sequence[int],
    most: float,
    dtype: np.dtype[Any] = BYTES,
    into: np.dtype[Any] | None = None,
) -> np.ndarray:
    """The array that a header has announced: the rest of a stream of at most `most` bytes.

    It is read in chunks: the decompressor keeps a copy of what it is asked for, and a chunk is
    converted at a time, to the type `into`.
    """
    count = math.prod(shape) * dtype.itemsize
    takes = f"but its shape {tuple(shape)} takes {count:,}"
    if count > most:
        raise ValueError(f"it is truncated: it cannot hold more than {most:,} bytes, {takes}")
    sides = "x".join(map(str, shape))
    check_room(file, f"an array of {sides},", math.prod(shape) * (into or dtype).itemsize)
    array = np.empty(shape, into or dtype)
    row, step = array.reshape(-1), max(CHUNK // dtype.itemsize, 1)
    for start in range(0, row.size, step):
        part = row[start : start + step]
        data = stream.read(part.size * dtype.itemsize)
        if len(data) < part.size * dtype.itemsize:
            raise EOFError(
                f"it is truncated: {start * dtype.itemsize + len(data):,} bytes, {takes}"
            )
        with np.errstate(over="ignore"):
            part[...] = np.frombuffer(data, dtype)
    if stream.read(1):  # reading to the end compares the checksum
        raise ValueError(f"it has bytes after its end, {takes}")
    return array


def check_room(what: object, announced: str, count: int) -> None:
    """Raises RefusedError if arrays of `count` bytes are larger than the memory."""
    memory = memory_size()
    if count > memory:
        raise RefusedError(
            f"{shown(what)} announces {shown(announced)} {count:,} bytes, but there are "
            f"{memory:,} bytes of memory; check it, or take fewer samples"
        )


def check_labels(y: np.ndarray, classes: int) -> None:
    """Raises ValueError unless all labels are below `classes`."""
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise ValueError(f"it has label {y[row]} in row {row:,}, expected 0 to {classes - 1}")


def memory_size() -> int:
    """The bytes of memory that this process may take: of the machine, or of its control group."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, memory_limit() or machine)

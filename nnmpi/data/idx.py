"""The IDX format of MNIST: a magic number, the shape, then bytes; gzipped or not.

0  0  8  d  | side 0 | ... | side d-1 | bytes
\\_________/   big-endian 32-bit each
magic: 8 = unsigned bytes, d = number of dimensions (3 for images, 1 for labels)
"""

import gzip
import math
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.data.files import REMEDY, RefusedError, check_ratio, read_array, reading
from nnmpi.quoting import shown

GZIP = b"\x1f\x8b"
KINDS = {2049: "labels", 2051: "images"}


def read(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array of `ndim` dimensions in an IDX file, gzip or not; read-only."""
    with reading(path), path.open("rb") as file:
        is_packed = file.read(len(GZIP)) == GZIP
        file.seek(0)
        size = path.stat().st_size
        if not is_packed:
            return _array(file, path, ndim, size, None)
        with gzip.open(file) as stream:
            return _array(stream, path, ndim, None, size)


def _array(stream: Any, path: Path, ndim: int, size: int | None, packed: int | None) -> np.ndarray:
    """The array of a stream of `size` bytes, or of `packed` bytes of gzip."""
    shape = _shape(stream, path, ndim)
    count = math.prod(shape)
    if size is not None:
        _check_length(path, shape, size - 4 * (1 + ndim))
    if packed is not None:
        check_ratio(path, shape, count, packed)
    if not count:
        raise RefusedError(f"{shown(path)} is empty: its shape is {shape}; {REMEDY}")
    array, there = read_array(stream, path, shape)
    _check_length(path, shape, there + len(stream.read(1)))  # the end has the checksum of gzip
    array.flags.writeable = False
    return array


def _shape(stream: Any, path: Path, ndim: int) -> tuple[int, ...]:
    """The shape in the header."""
    header = stream.read(4 * (1 + ndim))
    expected, magic = 0x0800 + ndim, int.from_bytes(header[:4], "big")
    if len(header) < 4 * (1 + ndim) or magic != expected:
        found = KINDS.get(magic, "neither images nor labels")
        raise RefusedError(
            f"{shown(path)} begins with {len(header):,} bytes and magic number {magic} ({found}), "
            f"expected {expected} ({KINDS.get(expected, f'{ndim} dimensions')}); {REMEDY}"
        )
    return tuple(int(n) for n in np.frombuffer(header, ">u4", ndim, 4))


def _check_length(path: Path, shape: tuple[int, ...], body: int) -> None:
    """Raises ValueError unless `body` bytes are what the shape takes."""
    count = math.prod(shape)
    if body != count:
        fault = "is truncated" if body < count else "has bytes after its end"
        raise RefusedError(
            f"{shown(path)} {fault}: {body:,} bytes, but its shape {shape} takes {count:,}; "
            f"{REMEDY}"
        )


def read_pair(images: Path, labels: Path, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, H, W) and their labels; raises ValueError unless they fit together."""
    x, y = read(images, 3), read(labels, 1)
    if len(x) != len(y):
        raise ValueError(
            f"{shown(images)} has {len(x):,} images but {shown(labels)} has {len(y):,} labels; "
            "replace them with files that belong together, or run again with --download"
        )
    check_labels(y, classes, labels)
    return x[:, None], y.astype("int64")


def check_labels(y: np.ndarray, classes: int, path: Path) -> None:
    """Raises ValueError unless all labels are below `classes`."""
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise ValueError(
            f"{shown(path)} has label {y[row]} in row {row:,}, expected 0 to {classes - 1}; "
            f"{REMEDY}"
        )

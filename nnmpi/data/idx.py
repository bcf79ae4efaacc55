"""The IDX format of MNIST: a magic number, the shape, then bytes; gzipped or not.

0  0  8  d  | side 0 | ... | side d-1 | bytes
\\_________/   big-endian 32-bit each
magic: 8 = unsigned bytes, d = number of dimensions (3 for images, 1 for labels)
"""

import gzip
import math
from pathlib import Path

import numpy as np

from nnmpi.data.dataset import Split
from nnmpi.data.files import REMEDY, reading

GZIP = b"\x1f\x8b"
KINDS = {2049: "labels", 2051: "images"}


def read(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array of `ndim` dimensions in an IDX file; read-only."""
    data = _read_bytes(path)
    expected = 0x0800 + ndim
    magic = int.from_bytes(data[:4], "big")
    if len(data) < 4 * (1 + ndim) or magic != expected:
        found = KINDS.get(magic, "neither images nor labels")
        raise ValueError(
            f"{path} holds {len(data):,} bytes that begin with magic number {magic} ({found}), "
            f"expected {expected} ({KINDS.get(expected, f'{ndim} dimensions')}); {REMEDY}"
        )
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", ndim, 4))
    body = len(data) - 4 * (1 + ndim)
    if body != math.prod(shape):
        fault = "is truncated" if body < math.prod(shape) else "has bytes after its end"
        raise ValueError(
            f"{path} {fault}: {body:,} bytes, but its shape {shape} "
            f"takes {math.prod(shape):,}; {REMEDY}"
        )
    if not body:
        raise ValueError(f"{path} is empty: its shape is {shape}; {REMEDY}")
    return np.frombuffer(data, "uint8", body, 4 * (1 + ndim)).reshape(shape)


def read_pair(images: Path, labels: Path, classes: int) -> Split:
    """Images (N, 1, H, W) and their labels; raises ValueError unless they fit together."""
    x, y = read(images, 3), read(labels, 1)
    if len(x) != len(y):
        raise ValueError(
            f"{images} has {len(x):,} images but {labels} has {len(y):,} labels; "
            "replace them with files that belong together, or run again with --download"
        )
    check_labels(y, classes, labels)
    return Split(x[:, None], y.astype("int64"))


def check_labels(y: np.ndarray, classes: int, path: Path) -> None:
    """Raises ValueError unless all labels are below `classes`."""
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise ValueError(
            f"{path} has label {y[row]} in row {row:,}, expected 0 to {classes - 1}; {REMEDY}"
        )


def _read_bytes(path: Path) -> bytes:
    """The content of a file, decompressed if it is gzip data (whatever its name)."""
    with reading(path):
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP) else data

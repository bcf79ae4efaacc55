"""The IDX format of MNIST: a magic number, the sides, then bytes; gzipped or not.

0  0  8  d  | side 0 | ... | side d-1 | bytes
\\_________/   big-endian 32-bit each
magic: 8 = unsigned bytes, d = number of sides (3 for images, 1 for labels)
"""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from nnmpi.data.dataset import Split

GZIP = b"\x1f\x8b"
KINDS = {2049: "labels", 2051: "images"}
REMEDY = "delete it and run again with --download, or put a good copy in its place"


def read(path: Path, sides: int) -> np.ndarray:
    """The uint8 array in an IDX file, with so many `sides`; read-only."""
    data = _content(path)
    expected = 0x0800 + sides
    magic = int.from_bytes(data[:4], "big")
    if len(data) < 4 * (1 + sides) or magic != expected:
        found = KINDS.get(magic, "neither images nor labels")
        raise ValueError(
            f"{path} holds {len(data):,} bytes that begin with magic number {magic} ({found}), "
            f"expected {expected} ({KINDS.get(expected, f'{sides} sides')}); {REMEDY}"
        )
    shape = tuple(int(n) for n in np.frombuffer(data, ">u4", sides, 4))
    body = len(data) - 4 * (1 + sides)
    if body != math.prod(shape):
        fault = "is cut short" if body < math.prod(shape) else "has bytes behind its end"
        raise ValueError(
            f"{path} {fault}: {body:,} bytes for a shape of {shape}, "
            f"which takes {math.prod(shape):,}; {REMEDY}"
        )
    if not body:
        raise ValueError(f"{path} is empty: its shape is {shape}; {REMEDY}")
    return np.frombuffer(data, "uint8", body, 4 * (1 + sides)).reshape(shape)


def read_pair(images: Path, labels: Path, classes: int) -> Split:
    """Images (N, 1, H, W) and their labels, one label an image and each below `classes`."""
    x, y = read(images, 3), read(labels, 1)
    if len(x) != len(y):
        raise ValueError(
            f"{images} has {len(x):,} images and {labels} {len(y):,} labels, which are no pair; "
            "put files that belong together there, or run again with --download"
        )
    check_labels(y, classes, labels)
    return Split(x[:, None], y.astype("int64"))


def check_labels(y: np.ndarray, classes: int, path: Path) -> None:
    """Every label of a file is below `classes`."""
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise ValueError(
            f"{path} has label {y[row]} in row {row:,}, expected 0 to {classes - 1}; {REMEDY}"
        )


def _content(path: Path) -> bytes:
    """The bytes of a file, unpacked if they are gzip's (its name does not matter)."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP) else data
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be read: {error}; {REMEDY}") from error

"""Files of tokens, which python -m nnmpi.tokenize writes: they stay on disk while they are trained.

header, tokens   a NumPy array in one dimension, as numpy.save writes it
a line of JSON   behind it, where NumPy does not look: what the tokens are
"""

import math
import os
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.lib import format as npy

from nnmpi.data.dataset import Dataset, DatasetRequest
from nnmpi.data.files import Bounded, RefusedError, check_regular, reading
from nnmpi.data.windows import About, in_windows
from nnmpi.quoting import shown

REMEDY = "write it again with python -m nnmpi.tokenize TEXT --out FILE.npy"
LONGEST = 64 << 20  # bytes of the line: a vocabulary of characters may be in it


def tokens(request: DatasetRequest) -> Dataset:
    """The tokens of a file in windows one behind the other; the last tenth is held out."""
    path = Path(os.path.expanduser(request.argument))
    with reading(path, REMEDY):
        check_regular(path, REMEDY)
        found, about = mapped(path)
    return in_windows(shown(f"tokens:{path.name}"), found, request.context, about)


def mapped(path: Path) -> tuple[np.ndarray, About]:
    """The tokens of a file, of which only what is used is read, and what they are."""
    with path.open("rb") as file:
        shape, _, dtype = _header(file)
        begin, size = file.tell(), os.fstat(file.fileno()).st_size
        if dtype.kind != "u" or len(shape) != 1:
            raise RefusedError(
                f"{shown(path)} holds {dtype} of shape {shape}, and tokens are unsigned integers "
                f"in one dimension; {REMEDY}"
            )
        end = begin + math.prod(shape) * dtype.itemsize
        if size < end:
            raise ValueError(f"it has {size:,} bytes, and its {shape[0]:,} tokens end at {end:,}")
        file.seek(end)
        about = About.read(file.read(LONGEST))
    if not shape[0]:
        return np.zeros(0, dtype), about
    return np.memmap(path, dtype, "r", begin, shape), about


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    bounded = cast("IO[bytes]", Bounded(file))
    version = npy.read_magic(bounded)
    if version != (1, 0):
        raise ValueError(f"it has version {version} of the format, not (1, 0)")
    found: tuple[tuple[int, ...], bool, np.dtype[Any]] = npy.read_array_header_1_0(bounded)
    return found

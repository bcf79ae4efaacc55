"""Files of tokens, which python -m nnmpi.tokenize writes: they stay on disk while they are trained.

header, tokens   a NumPy array in one dimension, as numpy.save writes it
a line of JSON   behind it, where NumPy does not look: what the tokens are
"""

import math
import os
import weakref
from collections.abc import Iterable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.data.dataset import Dataset, DatasetRequest
from nnmpi.data.files import RefusedError, read_npy_header, reading
from nnmpi.data.windows import About, in_windows
from nnmpi.quoting import shown
from nnmpi.user_files import check_regular

REMEDY = "write it again with python -m nnmpi.tokenize TEXT --out FILE.npy"
LONGEST = 64 << 20  # bytes of the line: a vocabulary of characters may be in it
BLOCK = 1 << 26  # bytes that are read at a time


def tokens(request: DatasetRequest) -> Dataset:
    """The tokens of a file in windows one behind the other; the last tenth is held out."""
    path = Path(os.path.expanduser(request.argument))
    with reading(path, REMEDY):
        check_regular(path)
        found, about = stored(path)
    return in_windows(shown(f"tokens:{path.name}"), found, request.context, about)


class OpenFile:
    """A file that stays open as long as something refers to it.

    It is read, not mapped: where a mapped file is truncated, a signal ends the process.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._descriptor = path, os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, places: Iterable[int], counts: Iterable[int]) -> bytes:
        """So many bytes from each of these places, fewer where the file has ended."""
        return b"".join(map(os.pread, repeat(self._descriptor), counts, places))


class StoredTokens:
    """Tokens (n,) in a file, or rows (n, T) of them, of which only rows that are taken are read.

    begin: the place of the first one in the file
    """

    def __init__(
        self, file: OpenFile, begin: int, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self._file, self._begin, self.shape, self.dtype = file, begin, shape, dtype
        self.size, self._row = math.prod(shape), math.prod(shape[1:]) * dtype.itemsize
        self.nbytes = self.size * dtype.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, n: int, T: int) -> "StoredTokens":
        """These tokens in rows."""
        return StoredTokens(self._file, self._begin, (n, T), self.dtype)

    def __getitem__(self, stretch: slice) -> "StoredTokens":
        """A stretch of tokens, which is not read."""
        taken = range(len(self))[stretch]
        begin = self._begin + taken.start * self._row
        return StoredTokens(self._file, begin, (len(taken),), self.dtype)

    def take(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """These rows; those behind one another are read at once."""
        most, count = max(BLOCK // self._row, 1), len(rows)
        is_first = np.ones(count, bool)
        is_first[1:] = np.diff(rows) != 1
        is_first[::most] = True
        begins = np.flatnonzero(is_first)
        places = self._begin + rows[begins] * self._row
        counts = np.diff(begins, append=count) * self._row
        content = self._file.read(places.tolist(), counts.tolist())
        if len(content) < count * self._row:
            raise RefusedError(
                f"{shown(self._file.path)} was truncated while it was in use; {REMEDY}"
            )
        return np.frombuffer(content, self.dtype).reshape(count, *self.shape[1:])


def stored(path: Path) -> tuple[StoredTokens, About]:
    """The tokens of a file, and what they are."""
    with path.open("rb") as file:
        shape, _, dtype = read_npy_header(file)
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
    return StoredTokens(OpenFile(path), begin, shape, dtype), about

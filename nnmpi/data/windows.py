"""Windows: rows of T tokens behind one another, and the tokens behind each; files of tokens.

tokens    I n   t h e   b e g i n n i n g ...
x         I n   t | h e   b |  e g i n | ...
y         n   t h | e   b e |  g i n n | ...        T = 4

Tokens stay as they are stored: one or two bytes each, in memory or in a file, which stays on disk
while they are trained. python -m nnmpi.tokenize writes such a file:

header, tokens   a NumPy array in one dimension, as numpy.save writes it
a line of JSON   behind it, where NumPy does not look: what the tokens are
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy

from nnmpi.data.dataset import Dataset, DatasetRequest, Language, Split
from nnmpi.data.files import RefusedError, reading
from nnmpi.data.tokenizer import Tokenizer
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import check_regular

HELD_OUT = 10


class TokenWindows:
    """Rows (N, T) of indices; what is taken of them is int64, in new arrays.

    stored: (N, T), of any type of integers, in memory or in a file
    """

    dtype, ndim = np.dtype("int64"), 2

    def __init__(self, stored: Any) -> None:
        self.stored = stored
        self.shape, self.size, self.nbytes = stored.shape, stored.size, stored.nbytes

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: Any) -> np.ndarray:
        rows = np.arange(len(self))[index]
        return self.take(rows.ravel()).reshape(*rows.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All rows, in memory."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def take(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """The rows at these places, as a new array."""
        return np.asarray(self.stored.take(rows, axis)).astype("int64")


class TokenInfo(NamedTuple):
    """The kind of tokens, as JSON behind those of a file.

    held_out_units: for how many characters, or bytes, the last tenth stands
    """

    tokenizer: str
    size: int
    tokens: str
    unit: str
    held_out_units: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, held_out_units: int) -> "TokenInfo":
        """The kind of tokens that a tokenizer makes."""
        words = tokenizer.tokens, tokenizer.unit
        return cls(tokenizer.describe(), tokenizer.size, *words, held_out_units)

    def line(self) -> bytes:
        """A line of JSON."""
        return b"\n" + json.dumps(self._asdict()).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "TokenInfo":
        """The kind of tokens in a line that `line` has made; raises ValueError for other bytes."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            raise ValueError(
                f"the {len(line):,} bytes behind its tokens do not say what they are"
            ) from None


def windows(tokens: Any, T: int) -> Split:
    """The tokens in rows of T, and those behind them; what does not fill a row is left out."""
    n = (len(tokens) - 1) // T
    x, y = (TokenWindows(tokens[i : n * T + i].reshape(n, T)) for i in (0, 1))
    return Split(cast(np.ndarray, x), cast(np.ndarray, y))  # they have what is used of arrays


def in_windows(name: str, tokens: Any, T: int, about: TokenInfo) -> Dataset:
    """The data set of tokens, whose last tenth is held out."""
    n, taken = len(tokens), held_out(len(tokens))
    kept = len(range(n)[taken])
    if kept <= T:
        raise ValueError(
            f"{name} has {n:,} {about.tokens}, of which the last {kept:,} are held out: a "
            f"window takes {T + 1:,} of them; give a longer text, or a smaller --context"
        )
    train, test = (windows(tokens[part], T) for part in (slice(taken.start), taken))
    note = (
        f"{n:,} {about.tokens} of a vocabulary of {about.size:,}, in windows of {T}; the last "
        f"{kept:,} are held out for testing"
    )
    language = Language(about.tokenizer, about.unit, kept / max(about.held_out_units, 1))
    return Dataset(name, train, test, about.size, note, language)


def held_out(n: int) -> slice:
    """The last tenth of n tokens, which is for testing."""
    return slice(n - n // HELD_OUT, n)


# ---- files of tokens


REMEDY = "write it again with python -m nnmpi.tokenize TEXT --out FILE.npy"
LONGEST = 64 << 20  # bytes of the line: a vocabulary of characters may be in it


def tokens(request: DatasetRequest) -> Dataset:
    """The tokens of a file in windows one behind the other; the last tenth is held out."""
    path = Path(os.path.expanduser(request.argument))
    with reading(path, REMEDY):
        check_regular(path)
        all_tokens, about = stored(path)
    return in_windows(shown(f"tokens:{path.name}"), all_tokens, request.context, about)


def stored(path: Path) -> tuple[np.ndarray, TokenInfo]:
    """The tokens of a file, which is mapped into memory, and what they are."""
    mapped = npy.open_memmap(path, "r")
    if mapped.dtype.kind != "u" or mapped.ndim != 1:
        raise RefusedError(
            f"{shown(path)} holds {mapped.dtype} of shape {mapped.shape}, and tokens are unsigned "
            f"integers in one dimension; {REMEDY}"
        )
    with path.open("rb") as file:
        file.seek(mapped.offset + mapped.nbytes)
        return mapped, TokenInfo.read(file.read(LONGEST))

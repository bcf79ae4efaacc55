"""Windows of text: consecutive rows of T tokens, each with the tokens that follow; files of tokens.

tokens    I n   t h e   b e g i n n i n g ...
x         I n   t | h e   b |  e g i n | ...
y         n   t h | e   b e |  g i n n | ...        T = 4

Tokens stay as they are stored, one or two bytes each, in memory or in a file that is read from disk
during training. python -m nnmpi.tokenize writes such a file:

header, tokens   a NumPy array in one dimension, as numpy.save writes it
a line of JSON   after the array, where NumPy does not look: the description of the tokens
"""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.lib import format as npy

from nnmpi.addons.language.data.tokenizer import Tokenizer
from nnmpi.data.dataset import Dataset, DatasetEntry, DatasetRequest, Language, Split
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import RefusedError, check_regular, reading

HELD_OUT = 10  # one token in ten


class TokenWindows:
    """Windows (N, T) of stored tokens, with the few methods of an array that loaders use; rows are
    read as new int64 arrays. `stored` has any integer dtype, in memory or mapped from a file."""

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
        """All rows as an array in memory."""
        return self[:] if dtype is None else self[:].astype(dtype)

    def take(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """The rows at the given indices, as a new int64 array."""
        return np.asarray(self.stored.take(rows, axis)).astype("int64")


class TokenInfo(NamedTuple):
    """The description of a file's tokens, stored as a line of JSON after them.

    tokenizer: the tokenizer's description, from which `tokenizer_of` makes it
    size: the number of tokens in its vocabulary
    tokens, unit: those of the Tokenizer
    held_out_units: how many characters, or bytes, the last tenth of the tokens stands for
    """

    tokenizer: str
    size: int
    tokens: str
    unit: str
    held_out_units: int

    @classmethod
    def of(cls, tokenizer: Tokenizer, held_out_units: int) -> "TokenInfo":
        """Returns the description of a tokenizer's file of tokens."""
        words = tokenizer.tokens, tokenizer.unit
        return cls(tokenizer.describe(), tokenizer.size, *words, held_out_units)

    def line(self) -> bytes:
        """The description as a line of JSON."""
        return b"\n" + json.dumps(self._asdict()).encode() + b"\n"

    @classmethod
    def read(cls, line: bytes) -> "TokenInfo":
        """The description in a line that `line` has made; raises ValueError for other bytes."""
        try:
            return cls(**json.loads(line))
        except (ValueError, TypeError):
            raise ValueError(
                f"the {len(line):,} bytes after its tokens are not a description by nnmpi.tokenize"
            ) from None


def windows(tokens: Any, T: int) -> Split:
    """Returns consecutive windows of a 1-D array of tokens as a Split: the rows of x have T tokens
    each, and y has the same rows one token later. An incomplete last row is left out."""
    n = (len(tokens) - 1) // T
    x, y = (TokenWindows(tokens[i : n * T + i].reshape(n, T)) for i in (0, 1))
    return Split(cast(np.ndarray, x), cast(np.ndarray, y))  # they have the methods that are used


def in_windows(name: str, tokens: Any, T: int, about: TokenInfo) -> Dataset:
    """Makes a data set for language models from the tokens of a text, a 1-D array: consecutive
    windows of T tokens. The last tenth of the text is for testing."""
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
    """The slice with the last tenth of n tokens, which is for testing."""
    return slice(n - n // HELD_OUT, n)


# ---- files of tokens


REMEDY = "write it again with python -m nnmpi.tokenize TEXT --out FILE.npy"
LONGEST = 64 << 20  # bytes of the line, which may contain a vocabulary of characters


def tokens(request: DatasetRequest) -> Dataset:
    """Loads a file of tokens that `python -m nnmpi.tokenize` has written, as consecutive windows;
    the last tenth is held out for testing."""
    path = Path(os.path.expanduser(request.argument))
    with reading(path, REMEDY):
        check_regular(path)
        all_tokens, about = stored(path)
    return in_windows(shown(f"tokens:{path.name}"), all_tokens, request.context, about)


TOKENS = DatasetEntry(tokens, "tokens:FILE.npy")


def stored(path: Path) -> tuple[np.ndarray, TokenInfo]:
    """Returns (the tokens of a file, mapped into memory; their description)."""
    mapped = npy.open_memmap(path, "r")
    if mapped.dtype.kind != "u" or mapped.ndim != 1:
        raise RefusedError(
            f"{shown(path)} holds {mapped.dtype} of shape {mapped.shape}, but tokens are unsigned "
            f"integers in one dimension; {REMEDY}"
        )
    with path.open("rb") as file:
        file.seek(mapped.offset + mapped.nbytes)
        return mapped, TokenInfo.read(file.read(LONGEST))

"""Text, a character or a byte a token, in windows of T tokens; labels are the tokens behind them.

tokens    I n   t h e   b e g i n n i n g ...
x         I n   t | h e   b |  e g i n | ...
y         n   t h | e   b e |  g i n n | ...        T = 4
"""

import gzip
import os
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi.data.dataset import Dataset, DatasetRequest, Language, Split
from nnmpi.data.files import check_room, reading
from nnmpi.data.tokenizer import ByteTokenizer, CharTokenizer
from nnmpi.quoting import shown

EMBEDDED = "new-testament.txt.gz"
REMEDY = "give a file of text, as --data text:FILE"
HELD_OUT = 10  # a tenth, the last one, is for testing
BYTES_A_CHARACTER = 16  # in memory while a text is read: of the file, of str, of its tokens


class Vocabulary(NamedTuple):
    """The characters that have a token, in their order; all bytes if the text is no UTF-8."""

    characters: str | None

    @property
    def size(self) -> int:
        """The number of tokens."""
        return 256 if self.characters is None else len(self.characters)

    @property
    def unit(self) -> str:
        """What a token is."""
        return "bytes" if self.characters is None else "characters"


def text(request: DatasetRequest) -> Dataset:
    """The text of a file, or the one that comes with the library, in windows one behind the other;
    the last tenth is held out."""
    name, T = shown(f"text:{request.argument}" if request.argument else "text"), request.context
    tokens, vocabulary = tokens_of(_content(request.argument))
    n = len(tokens)
    held_out = n // HELD_OUT
    if held_out <= T:
        raise ValueError(
            f"{name} has {n:,} {vocabulary.unit}, of which the last {held_out:,} are held out: a "
            f"window takes {T + 1:,} of them; give a longer text, or a smaller --context"
        )
    train, test = (windows(part, T) for part in (tokens[:-held_out], tokens[-held_out:]))
    note = (
        f"{n:,} {vocabulary.unit}, {vocabulary.size} different ones, in windows of {T}; the last "
        f"{held_out:,} are held out for testing"
    )
    tokenizer = CharTokenizer(vocabulary.characters) if vocabulary.characters else ByteTokenizer()
    language = Language(tokenizer.describe(), tokenizer.unit, 1.0)
    return Dataset(name, train, test, vocabulary.size, note, language)


def tokens_of(content: bytes) -> tuple[np.ndarray, Vocabulary]:
    """The tokens (int64) of a text, and what they stand for."""
    try:
        points = np.frombuffer(content.decode("utf-8").encode("utf-32-le"), "<u4")
    except UnicodeDecodeError:
        return np.frombuffer(content, np.uint8).astype("int64"), Vocabulary(None)
    known, tokens = np.unique(points, return_inverse=True)
    return tokens.astype("int64", copy=False), Vocabulary("".join(map(chr, known)))


def windows(tokens: np.ndarray, T: int) -> Split:
    """The tokens in rows of T, and those behind them; what does not fill a row is left out."""
    n = (len(tokens) - 1) // T
    return Split(tokens[: n * T].reshape(n, T), tokens[1 : n * T + 1].reshape(n, T))


def _content(argument: str) -> bytes:
    if not argument:
        return gzip.decompress((files("nnmpi.data.embedded") / EMBEDDED).read_bytes())
    path = Path(os.path.expanduser(argument))
    with reading(path, REMEDY):
        check_room(path, "with its tokens", path.stat().st_size * BYTES_A_CHARACTER)
        return path.read_bytes()

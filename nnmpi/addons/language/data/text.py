"""Loads texts as windows of T tokens: characters, bytes, or a tokenizer's."""

import gzip
import os
from collections.abc import Iterable
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np

from nnmpi.addons.language.data.pieces import CHARACTERS, pieces, points_of
from nnmpi.addons.language.data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    Tokenizer,
)
from nnmpi.addons.language.data.windows import TokenInfo, held_out, in_windows
from nnmpi.data.dataset import Dataset, DatasetEntry, DatasetRequest
from nnmpi.data.files import check_room
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import check_regular, reading

EMBEDDED = "new-testament.txt.gz"
REMEDY = "give a file of text, as --data text:FILE"
MEMORY_PER_BYTE = 8  # bytes of memory per byte of text while it is read: the file and its tokens


def text(request: DatasetRequest) -> Dataset:
    """Loads a text as consecutive windows of tokens: from the file `request.argument`, or by
    default the text that comes with the library. The last tenth is held out for testing."""
    name = shown(f"text:{request.argument}" if request.argument else "text")
    content = _content(request.argument)
    if isinstance(request.tokenizer, str):
        tokenizer: Tokenizer = BPETokenizer(request.tokenizer)
    elif request.tokenizer:
        tokenizer = request.tokenizer
    else:
        tokenizer = tokenizer_of_points(characters(pieces(BytesIO(content), CHARACTERS)))
    try:
        tokens = tokens_of(content, tokenizer)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    units = tokenizer.lengths()[tokens[held_out(len(tokens))]].sum()
    return in_windows(name, tokens, request.context, TokenInfo.of(tokenizer, int(units)))


TEXT = DatasetEntry(text, "text:FILE", may_stand_alone=True, has_tokenizer=True)


def characters(texts: Iterable[bytes]) -> np.ndarray | None:
    """The sorted code points that occur in texts; None if they are not UTF-8."""
    points = np.zeros(0, "<u4")
    try:
        for piece in texts:
            points = np.union1d(points, points_of(piece.decode("utf-8")))
    except UnicodeDecodeError:
        return None
    return points


def tokenizer_of_points(points: np.ndarray | None) -> Tokenizer:
    """A tokenizer with one token per given code point; without code points, one token per byte."""
    return ByteTokenizer() if points is None else CharTokenizer(list(map(chr, points)))


def tokens_of(content: bytes, tokenizer: Tokenizer) -> np.ndarray:
    """Returns a text's tokens in the smallest unsigned dtype that holds them."""
    dtype = small_type(tokenizer)
    encoded = [tokenizer.encode(p).astype(dtype) for p in pieces(BytesIO(content), tokenizer.cuts)]
    return np.concatenate([np.zeros(0, dtype), *encoded])


def small_type(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned integer dtype that holds a tokenizer's tokens."""
    return np.min_scalar_type(max(tokenizer.size - 1, 0))


def _content(argument: str) -> bytes:
    if not argument:
        return gzip.decompress((files("nnmpi.addons.language.data") / EMBEDDED).read_bytes())
    path = Path(os.path.expanduser(argument))
    with reading(path, REMEDY):
        check_regular(path)
        check_room(path, "the text and its tokens take", path.stat().st_size * MEMORY_PER_BYTE)
        return path.read_bytes()

"""Tokenizers: between a text and the numbers of its tokens; a token is a character, a byte, or a
piece of a word (byte-level BPE, as GPT-2 has it, by the library `tokenizers`).

`describe` returns a line of JSON from which `tokenizer_of` makes the tokenizer again.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi.data.bpe import BPETokenizer as BPETokenizer
from nnmpi.data.pieces import ANYWHERE, CHARACTERS, as_text, points_of
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import parsed

IN_FOLDERS = ("tokenizer.json", "vocab.json")
"""The files by which a folder is known to have a tokenizer."""

NO_POINT = np.uint32(0xFFFFFFFF)  # above all code points


class Tokenizer(Protocol):
    """A vocabulary of `size` tokens.

    tokens: what its tokens are, as messages say it
    unit: what is counted of a text: a character, or a byte
    cuts: where the bytes of a text may be cut, so that its parts have the same tokens as the whole
    start: the token behind which a text begins: <|endoftext|>, or else the end of a line
    """

    tokens: str
    unit: str
    cuts: re.Pattern[bytes]

    @property
    def start(self) -> int:
        """A token."""

    @property
    def size(self) -> int:
        """The number of tokens."""

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens of a text, or of its bytes in UTF-8: int64, (T,)."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens."""

    def lengths(self) -> np.ndarray:
        """How many units each token stands for: int64, (size,); those of a text add up to it."""

    def describe(self) -> str:
        """A line of JSON from which `tokenizer_of` makes this tokenizer again."""


class ByteTokenizer:
    """A token is a byte: for files that are no UTF-8, and for texts of any language."""

    tokens, unit, cuts, size, start = "bytes", "byte", ANYWHERE, 256, ord("\n")

    def encode(self, text: str | bytes) -> np.ndarray:
        """The bytes of a text."""
        data = text.encode() if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype("int64")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of bytes; U+FFFD stands for those that are no UTF-8."""
        return bytes(map(int, ids)).decode("utf-8", "replace")

    def lengths(self) -> np.ndarray:
        """A byte each."""
        return np.ones(self.size, "int64")

    def describe(self) -> str:
        """{"kind": "bytes"}"""
        return json.dumps({"kind": "bytes"})


class CharTokenizer:
    """A token is one of these characters, in their order; `CharTokenizer.of(text)` has those of a
    text, sorted."""

    tokens, unit, cuts = "characters", "character", CHARACTERS

    def __init__(self, characters: Sequence[str]) -> None:
        self.characters = "".join(characters)
        points = points_of(self.characters)
        if len(set(self.characters)) != points.size:
            raise ValueError(
                f"the vocabulary has {points.size} characters, of which only "
                f"{len(set(self.characters))} are different; give each once"
            )
        self._order = np.argsort(points)
        self._sorted = np.append(points[self._order], NO_POINT)
        self.start = max(self.characters.find("\n"), 0)

    @classmethod
    def of(cls, text: str) -> "CharTokenizer":
        """The tokenizer of the characters that a text has."""
        return cls("".join(map(chr, np.unique(points_of(text)))))

    @property
    def size(self) -> int:
        """The number of characters."""
        return len(self.characters)

    def encode(self, text: str | bytes) -> np.ndarray:
        """The numbers of its characters; raises ValueError for others."""
        points = points_of(text if isinstance(text, str) else as_text(text))
        places = np.searchsorted(self._sorted, points)
        unknown = np.flatnonzero(self._sorted[places] != points)
        if unknown.size:
            first = int(unknown[0])
            raise ValueError(
                f"character {chr(points[first])!r} at place {first:,} of the text is none of the "
                f"{self.size} characters of the vocabulary; leave it out"
            )
        return self._order[places].astype("int64", copy=False)

    def decode(self, ids: Iterable[int]) -> str:
        """Their characters."""
        return "".join(self.characters[int(i)] for i in ids)

    def lengths(self) -> np.ndarray:
        """A character each."""
        return np.ones(self.size, "int64")

    def describe(self) -> str:
        """{"kind": "characters", "characters": "..."}"""
        return json.dumps({"kind": "characters", "characters": self.characters})


def tokenizer_of(description: str) -> Tokenizer:
    """The tokenizer that `describe` has described; raises ValueError if it cannot be made."""
    kind, values = _described(description)
    made: Tokenizer = KINDS[kind].make(**values)
    return made


def has_tokenizer(folder: str) -> bool:
    """Whether a folder has the files of a tokenizer."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in IN_FOLDERS)


def located(description: str, folder: str) -> str:
    """A description whose path, if it has one, is taken from the folder of the model.

    Where nothing is at the path, it is the folder itself, if that has the files of a tokenizer.
    """
    kind, values = _described(description)
    if "path" not in values:
        return description
    path = os.path.join(folder, values["path"])
    if has_tokenizer(folder) and not os.path.exists(path):
        path = folder
    return json.dumps({"kind": kind, **values, "path": path})


def vocabulary_of(description: str) -> tuple[object, ...]:
    """A key that is equal if two tokenizers make the same tokens: of a BPE not the path."""
    kind, values = _described(description)
    return kind, *(value for name, value in values.items() if name != "path")


def in_words(description: str) -> str:
    """The tokens that `describe` has described, for messages."""
    kind, values = _described(description)
    return shown(KINDS[kind].words.format(**values))


def _described(description: str) -> tuple[str, dict[str, Any]]:
    """The kind of a tokenizer, and the values that make it."""
    try:
        fields = parsed(json.loads, description)
        types = KINDS[fields["kind"]].types
        values = {name: fields[name] for name in types}
        if any(type(values[name]) is not wanted for name, wanted in types.items()):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{shown(description, 80)} describes no tokenizer; give what its describe() returns"
        ) from None
    return fields["kind"], values


def _of_bpe(path: str, size: int, sha256: str) -> BPETokenizer:
    made = BPETokenizer(path)
    if (made.size, made.sha256) != (size, sha256):
        raise ValueError(
            f"tokenizer {shown(made.path)} has {made.size:,} tokens (SHA-256 {made.sha256}), and "
            f"{size:,} ({shown(sha256)}) are expected: it has been replaced; put the one of the "
            "training in its place"
        )
    return made


class TokenizerKind(NamedTuple):
    """A kind of tokenizer: the function that makes it, the types of the values of its description,
    and its tokens in words."""

    make: Callable[..., Any]
    types: Mapping[str, type]  # of the values
    words: str


BPE = {"path": str, "size": int, "sha256": str}
KINDS = {
    "bytes": TokenizerKind(ByteTokenizer, {}, "bytes"),
    "characters": TokenizerKind(
        CharTokenizer, {"characters": str}, "the characters {characters!r}"
    ),
    "bpe": TokenizerKind(_of_bpe, BPE, "{size} tokens of BPE (SHA-256 {sha256})"),
}

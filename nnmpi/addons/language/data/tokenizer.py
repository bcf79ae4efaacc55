"""Tokenizers, which map text to token ids and back. A token is a character, a byte, or a piece of a
word (GPT-2's byte-level BPE, with the library `tokenizers`)."""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi.addons.language.data.bpe import BPETokenizer as BPETokenizer
from nnmpi.addons.language.data.pieces import ANYWHERE, CHARACTERS, as_text, points_of
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import parsed

IN_FOLDERS = ("tokenizer.json", "vocab.json")
"""The files of which a folder with a tokenizer has at least one."""

NO_POINT = np.uint32(0xFFFFFFFF)  # above all code points


class Tokenizer(Protocol):
    """The interface of tokenizers.

    tokens: the word for its tokens in messages, such as "characters"
    unit: the unit in which texts are measured: "character" or "byte"
    cuts: where the bytes of a text may be cut, so that its parts have the same tokens as the whole
    """

    tokens: str
    unit: str
    cuts: re.Pattern[bytes]

    @property
    def start(self) -> int:
        """The token at the beginning of a text, from which text is generated."""

    @property
    def size(self) -> int:
        """The number of tokens in the vocabulary."""

    def encode(self, text: str | bytes) -> np.ndarray:
        """The token ids of a text, or of UTF-8 bytes: int64, (T,)."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of token ids."""

    def lengths(self) -> np.ndarray:
        """The number of units (characters or bytes) that each token stands for: int64, (size,)."""

    def describe(self) -> str:
        """A line of JSON from which `tokenizer_of` makes this tokenizer again."""


class ByteTokenizer:
    """A tokenizer of bytes: for files that are not UTF-8, and any language."""

    tokens, unit, cuts, size, start = "bytes", "byte", ANYWHERE, 256, ord("\n")

    def encode(self, text: str | bytes) -> np.ndarray:
        """The bytes of a text as token ids."""
        data = text.encode() if isinstance(text, str) else text
        return np.frombuffer(data, np.uint8).astype("int64")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of bytes; U+FFFD stands for bytes that are not UTF-8."""
        return bytes(map(int, ids)).decode("utf-8", "replace")

    def lengths(self) -> np.ndarray:
        """The number of bytes of each token, which is 1."""
        return np.ones(self.size, "int64")

    def describe(self) -> str:
        """The JSON {"kind": "bytes"}."""
        return json.dumps({"kind": "bytes"})


class CharTokenizer:
    """A tokenizer of given characters; `CharTokenizer.of(text)` takes a text's."""

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
        # the last entry, above all others, is found for characters outside the vocabulary
        self._sorted = np.append(points[self._order], NO_POINT)
        self.start = max(self.characters.find("\n"), 0)

    @classmethod
    def of(cls, text: str) -> "CharTokenizer":
        """The tokenizer for the characters that occur in a text."""
        return cls("".join(map(chr, np.unique(points_of(text)))))

    @property
    def size(self) -> int:
        """The number of characters in the vocabulary."""
        return len(self.characters)

    def encode(self, text: str | bytes) -> np.ndarray:
        """The ids of a text's characters; raises ValueError for an unknown one."""
        points = points_of(text if isinstance(text, str) else as_text(text))
        places = np.searchsorted(self._sorted, points)
        unknown = np.flatnonzero(self._sorted[places] != points)
        if unknown.size:
            first = int(unknown[0])
            raise ValueError(
                f"character {chr(points[first])!r} at place {first:,} of the text is not among the "
                f"{self.size} characters of the vocabulary; leave it out"
            )
        return self._order[places].astype("int64", copy=False)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of token ids."""
        return "".join(self.characters[int(i)] for i in ids)

    def lengths(self) -> np.ndarray:
        """The number of characters of each token, which is 1."""
        return np.ones(self.size, "int64")

    def describe(self) -> str:
        """The JSON {"kind": "characters", "characters": "..."}."""
        return json.dumps({"kind": "characters", "characters": self.characters})


def tokenizer_of(description: str) -> Tokenizer:
    """Makes a tokenizer from the JSON of `describe`, or raises ValueError."""
    kind, values = _described(description)
    tokenizer: Tokenizer = TOKENIZERS[kind].make(**values)
    return tokenizer


def has_tokenizer(folder: str) -> bool:
    """True if a folder has the files of a byte-level BPE tokenizer."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in IN_FOLDERS)


def located(description: str, folder: str) -> str:
    """Returns a tokenizer's description with its path joined to `folder`, the model's; the path
    becomes the folder if nothing exists there, but the folder has the files of a tokenizer."""
    kind, values = _described(description)
    if "path" not in values:
        return description
    path = os.path.join(folder, values["path"])
    if has_tokenizer(folder) and not os.path.exists(path):
        path = folder
    return json.dumps({"kind": kind, **values, "path": path})


def vocabulary_of(description: str) -> tuple[object, ...]:
    """A key equal for tokenizers of the same tokens: without the path."""
    kind, values = _described(description)
    return kind, *(value for name, value in values.items() if name != "path")


def in_words(description: str) -> str:
    """A tokenizer's description in words, for messages."""
    kind, values = _described(description)
    return shown(TOKENIZERS[kind].words.format(**values))


def _described(description: str) -> tuple[str, dict[str, Any]]:
    """Returns (kind, values) of a tokenizer's JSON description."""
    try:
        fields = parsed(json.loads, description)
        types = TOKENIZERS[fields["kind"]].types
        values = {name: fields[name] for name in types}
        if any(type(values[name]) is not wanted for name, wanted in types.items()):
            raise TypeError
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{shown(description, 80)} is not the description of a tokenizer; give the text that "
            "its describe() returns"
        ) from None
    return fields["kind"], values


def _of_bpe(path: str, size: int, sha256: str) -> BPETokenizer:
    tokenizer = BPETokenizer(path)
    if (tokenizer.size, tokenizer.sha256) != (size, sha256):
        raise ValueError(
            f"tokenizer {shown(tokenizer.path)} has {tokenizer.size:,} tokens "
            f"(SHA-256 {tokenizer.sha256}), but {size:,} ({shown(sha256)}) are expected: it has "
            "been replaced; put back the tokenizer that the model was trained with"
        )
    return tokenizer


class TokenizerKind(NamedTuple):
    """How to make a kind of tokenizer from its JSON description, the types of the values in it, and
    a template of its name in messages."""

    make: Callable[..., Any]
    types: Mapping[str, type]  # by the name of the value
    words: str


BPE = {"path": str, "size": int, "sha256": str}
TOKENIZERS = {
    "bytes": TokenizerKind(ByteTokenizer, {}, "bytes"),
    "characters": TokenizerKind(
        CharTokenizer, {"characters": str}, "the characters {characters!r}"
    ),
    "bpe": TokenizerKind(_of_bpe, BPE, "{size} tokens of BPE (SHA-256 {sha256})"),
}

"""Tokenizers: between a text and the numbers of its tokens; a token is a character, a byte, or a
piece of a word (byte-level BPE, as GPT-2 has it, by the library `tokenizers`).

`describe` returns a line of JSON from which `tokenizer_of` makes the tokenizer again.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi.data.files import reading
from nnmpi.quoting import quoted, shown

LIBRARY = "the package tokenizers, which is not installed: pip install 'nnmpi[text]'"
MARKS = "continuing_subword_prefix", "end_of_word_suffix"  # of tokens of other kinds of BPE
REMEDY = "give a folder with vocab.json and merges.txt, or a tokenizer.json"
END = "<|endoftext|>"
"""The token between texts, of GPT-2; `vocab.json` does not say that it is a special one."""

ANYWHERE = re.compile(rb"")
CHARACTERS = re.compile(rb"(?=[^\x80-\xbf])")
NO_POINT = np.uint32(0xFFFFFFFF)  # above all code points
BEFORE_SPACE = re.compile(
    rb"(?<=[^\x00-\x20])(?<!\xc2\x85)(?<!\xc2\xa0)(?<!\xe1\x9a\x80)(?<!\xe2\x80[\x80-\x8a\xa8\xa9\xaf])"
    rb"(?<!\xe2\x81\x9f)(?<!\xe3\x80\x80)(?=[ \t\r\n])"
)
"""Between a character that is no white space and one that is: no token of byte-level BPE lies
across, since none of the words into which it divides a text first has white space behind others."""


class Tokenizer(Protocol):
    """A vocabulary of `size` tokens.

    tokens: what its tokens are, as messages say it
    unit: what is counted of a text: a character, or a byte
    cuts: where the bytes of a text may be cut, so that its parts have the same tokens as the whole
    """

    tokens: str
    unit: str
    cuts: re.Pattern[bytes]

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

    tokens, unit, cuts, size = "bytes", "byte", ANYWHERE, 256

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


class BPETokenizer:
    """Byte-level BPE as GPT-2 has it, from a folder with vocab.json and merges.txt, or from a
    tokenizer.json."""

    tokens, unit, cuts = "tokens", "character", BEFORE_SPACE

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self._bpe = _library_tokenizer(self.path)
        self._bpe.no_truncation()
        self._bpe.no_padding()
        vocabulary, found = self._bpe.get_vocab(), json.loads(self._bpe.to_str())
        _check(self.path, found, vocabulary)
        self.size = max(vocabulary.values()) + 1
        both = json.dumps([sorted(vocabulary.items()), found["model"]["merges"]])
        self.sha256 = hashlib.sha256(both.encode()).hexdigest()[:12]

    def encode(self, text: str | bytes) -> np.ndarray:
        """The tokens of a text; the library keeps about 100 bytes of each meanwhile."""
        given = text if isinstance(text, str) else as_text(text)
        return np.array(self._bpe.encode(given, add_special_tokens=False).ids, "int64")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of tokens; U+FFFD stands for bytes that are no UTF-8."""
        text: str = self._bpe.decode([int(i) for i in ids], skip_special_tokens=False)
        return text

    def lengths(self) -> np.ndarray:
        """How many characters begin in each token."""
        found = np.zeros(self.size, "int64")
        for token, i in self._bpe.get_vocab(with_added_tokens=False).items():
            found[i] = sum(c not in CONTINUE for c in token)
        for i, added in self._bpe.get_added_tokens_decoder().items():
            found[i] = len(added.content)
        return found

    def describe(self) -> str:
        """{"kind": "bpe", "path": "...", "size": ..., "sha256": "..."}: the last of vocabulary and
        merges, its first 12 digits"""
        path = str(self.path)
        return json.dumps({"kind": "bpe", "path": path, "size": self.size, "sha256": self.sha256})


def tokenizer_of(description: str) -> Tokenizer:
    """The tokenizer that `describe` has described; raises ValueError if it cannot be made."""
    kind, values = _described(description)
    made: Tokenizer = KINDS[kind].make(**values)
    return made


def vocabulary_of(description: str) -> tuple[object, ...]:
    """What is equal if two tokenizers make the same tokens: of a BPE not the path."""
    kind, values = _described(description)
    return kind, *(value for name, value in values.items() if name != "path")


def in_words(description: str) -> str:
    """The tokens that `describe` has described, for messages."""
    kind, values = _described(description)
    return shown(KINDS[kind].words.format(**values))


def _described(description: str) -> tuple[str, dict[str, Any]]:
    """The kind of a tokenizer, and the values that make it."""
    try:
        found = json.loads(description)
        return found["kind"], {name: found[name] for name in KINDS[found["kind"]].values}
    except (ValueError, TypeError, KeyError):
        raise ValueError(
            f"{shown(description, 80)} describes no tokenizer; give what its describe() returns"
        ) from None


def _of_bpe(path: str, size: int, sha256: str) -> BPETokenizer:
    made = BPETokenizer(path)
    if (made.size, made.sha256) != (size, sha256):
        raise ValueError(
            f"tokenizer {shown(made.path)} has {made.size:,} tokens (SHA-256 {made.sha256}), and "
            f"{size:,} ({shown(sha256)}) are expected: it has been replaced; put the one of the "
            "training in its place"
        )
    return made


class Kind(NamedTuple):
    """What makes a tokenizer, from which values of its description; its tokens in words."""

    make: Callable[..., Any]
    values: tuple[str, ...]
    words: str


KINDS = {
    "bytes": Kind(ByteTokenizer, (), "bytes"),
    "characters": Kind(CharTokenizer, ("characters",), "the characters {characters!r}"),
    "bpe": Kind(_of_bpe, ("path", "size", "sha256"), "{size} tokens of BPE (SHA-256 {sha256})"),
}


def as_text(data: bytes) -> str:
    """Bytes in UTF-8 as text; raises ValueError, which says where they are none."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = shown(repr(data[max(error.start - 20, 0) : error.start]))
        raise ValueError(
            f"the text is not UTF-8: byte 0x{data[error.start]:02x} behind {before}; convert it, "
            "or leave the tokenizer out, so that a token is a byte"
        ) from None


def points_of(text: str) -> np.ndarray:
    """The code points of a text: uint32, (T,)."""
    return np.frombuffer(text.encode("utf-32-le"), "<u4")


# ---- byte-level BPE: each byte has a printable character


def _bytes_to_characters() -> dict[int, str]:
    """The characters that stand for bytes: themselves if printable, else those from U+0100 on."""
    themselves = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in themselves]
    return {byte: chr(byte) for byte in themselves} | {
        b: chr(256 + i) for i, b in enumerate(others)
    }


ALPHABET = _bytes_to_characters()
CONTINUE = frozenset(ALPHABET[byte] for byte in range(0x80, 0xC0))
"""The characters of bytes with which no character of UTF-8 begins."""


def _library_tokenizer(path: Path) -> Any:
    """The tokenizer of the library; raises ValueError of one line without it, or for bad files."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError(f"tokenizer {shown(path)} needs {LIBRARY}") from None
    one = path / "tokenizer.json" if path.is_dir() else path
    two = [path / "vocab.json", path / "merges.txt"]
    if one.is_file():
        with reading(one, REMEDY):
            made = tokenizers.Tokenizer.from_file(str(one))
        made.decoder = tokenizers.decoders.ByteLevel()  # the file may lack it
        return made
    missing = [file.name for file in two if not file.is_file()]
    if missing:
        has = f"a folder without tokenizer.json, and without {' and '.join(missing)}"
        what = has if path.is_dir() else "no file and no folder"
        raise ValueError(f"tokenizer {shown(path)} is {what}; {REMEDY}")
    with reading(path, REMEDY):
        model = tokenizers.models.BPE.from_file(*map(str, two))
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    if END in made.get_vocab():
        made.add_special_tokens([END])
    return made


def _check(path: Path, found: dict[str, Any], vocabulary: dict[str, int]) -> None:
    """Raises ValueError unless it is byte-level BPE that divides a text as GPT-2 does.

    Only then parts of a text have the same tokens as the whole.
    """
    model, words = found["model"], found["pre_tokenizer"] or {}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    wrong = [
        f"its model is {model['type']}" if model["type"] != "BPE" else "",
        "it drops merges at random" if model.get("dropout") else "",
        *(f"it has {mark} {quoted(model[mark])}" for mark in MARKS if model.get(mark)),
        f"it changes characters ({found['normalizer']['type']})" if found["normalizer"] else "",
        "" if byte_level.items() <= words.items() else "it divides texts into other words",
        *(
            f"token {quoted(added['content'])} takes the spaces behind it"
            for added in found["added_tokens"]
            if added["rstrip"] or re.search(r"\S\s", added["content"])
        ),
    ]
    lacking = sum(c not in vocabulary for c in ALPHABET.values())
    for reason in filter(None, wrong):
        raise ValueError(f"tokenizer {shown(path)} is not byte-level BPE as of GPT-2: {reason}")
    if lacking:
        raise ValueError(
            f"tokenizer {shown(path)} has no token for {lacking} of the 256 bytes, so texts would "
            f"lose characters; {REMEDY}"
        )

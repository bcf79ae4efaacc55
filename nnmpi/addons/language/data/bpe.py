"""BPETokenizer: GPT-2's byte-level BPE, with the library `tokenizers`."""

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.addons.language.data.pieces import BEFORE_SPACE, as_text
from nnmpi.options.quoting import quoted, shown
from nnmpi.options.user_files import check_regular, reading

LIBRARY = "the package tokenizers, which is not installed: pip install 'nnmpi[text]'"
MARKS = "continuing_subword_prefix", "end_of_word_suffix"  # used by other variants of BPE
OTHER = "is not the byte-level BPE of GPT-2"
REMEDY = "give a folder with vocab.json and merges.txt, or a tokenizer.json"
LARGEST = 1 << 28  # bytes of a tokenizer's file, at most
END = "<|endoftext|>"
"""GPT-2's token between texts; `vocab.json` does not say that it is a special token."""


class BPETokenizer:
    """GPT-2's byte-level BPE, from vocab.json and merges.txt, or a tokenizer.json."""

    tokens, unit, cuts = "tokens", "character", BEFORE_SPACE

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(os.path.abspath(os.path.expanduser(path)))
        self._bpe = _library_tokenizer(self.path)
        self._bpe.no_truncation()
        self._bpe.no_padding()
        vocabulary = self._bpe.get_vocab()
        described = json.loads(self._bpe.to_str())
        _check(self.path, described, vocabulary)
        self.size = max(vocabulary.values()) + 1
        self.start = vocabulary.get(END, vocabulary[ALPHABET[ord("\n")]])
        content = json.dumps([sorted(vocabulary.items()), described["model"]["merges"]])
        self.sha256 = hashlib.sha256(content.encode()).hexdigest()[:12]

    def encode(self, text: str | bytes) -> np.ndarray:
        """Returns a text's token ids (T,); the library needs about 100 bytes per token."""
        decoded = text if isinstance(text, str) else as_text(text)
        return np.array(self._bpe.encode(decoded, add_special_tokens=False).ids, "int64")

    def decode(self, ids: Iterable[int]) -> str:
        """The text of a sequence of tokens; U+FFFD stands for bytes that are not UTF-8."""
        text: str = self._bpe.decode([int(i) for i in ids], skip_special_tokens=False)
        return text

    def lengths(self) -> np.ndarray:
        """Returns how many characters each token of the vocabulary stands for: int64, (size,). A
        character whose UTF-8 bytes lie in several tokens counts for the first of them."""
        counts = np.zeros(self.size, "int64")
        for token, i in self._bpe.get_vocab(with_added_tokens=False).items():
            counts[i] = sum(c not in CONTINUE for c in token)
        for i, added in self._bpe.get_added_tokens_decoder().items():
            counts[i] = len(added.content)
        return counts

    def describe(self, path: str | None = None) -> str:
        """A line of JSON, {"kind": "bpe", "path": "...", "size": ..., "sha256": "..."}: the first
        12 digits of the hash of vocabulary and merges. `path` overrides the tokenizer's, for
        instance if a copy is saved."""
        path = path or str(self.path)
        return json.dumps({"kind": "bpe", "path": path, "size": self.size, "sha256": self.sha256})

    def to_json(self) -> str:
        """The content of a tokenizer.json for this tokenizer."""
        content: str = self._bpe.to_str(pretty=True)
        return content


# ---- byte-level BPE: each byte has a printable character


def _bytes_to_characters() -> dict[int, str]:
    """GPT-2's characters for bytes: printable ones themselves, others from U+0100 on."""
    themselves = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in themselves]
    return {byte: chr(byte) for byte in themselves} | {
        b: chr(256 + i) for i, b in enumerate(others)
    }


ALPHABET = _bytes_to_characters()
CONTINUE = frozenset(ALPHABET[byte] for byte in range(0x80, 0xC0))
"""The characters that stand for UTF-8 continuation bytes, with which no character begins."""


def _library_tokenizer(path: Path) -> Any:
    """The object of the library `tokenizers`; a ValueError of one line if that fails."""
    try:
        import tokenizers
    except ImportError:
        raise ValueError(f"tokenizer {shown(path)} needs {LIBRARY}") from None
    whole_file = path / "tokenizer.json" if path.is_dir() else path
    pair = [path / "vocab.json", path / "merges.txt"]
    for file in (whole_file, *pair):
        if os.path.exists(file) and not file.is_dir():
            with reading(file, REMEDY):
                check_regular(file, LARGEST)
    if whole_file.is_file():
        with reading(whole_file, REMEDY):
            tokenizer = tokenizers.Tokenizer.from_file(str(whole_file))
        tokenizer.decoder = tokenizers.decoders.ByteLevel()  # the file may lack a decoder
        return tokenizer
    missing = [file.name for file in pair if not file.is_file()]
    if missing:
        has = f"a folder without tokenizer.json and without {' and '.join(missing)}"
        fault = has if path.is_dir() else "neither a file nor a folder"
        raise ValueError(f"tokenizer {shown(path)} is {fault}; {REMEDY}")
    with reading(f"{pair[0]}, or {pair[1].name},", REMEDY):
        model = tokenizers.models.BPE.from_file(*map(str, pair))
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    if END in tokenizer.get_vocab():
        tokenizer.add_special_tokens([END])
    return tokenizer


def _check(path: Path, described: dict[str, Any], vocabulary: dict[str, int]) -> None:
    """Raises ValueError unless the tokenizer is byte-level BPE that splits a text into words as
    GPT-2 does: only then do parts of a text have the same tokens as the whole. `described` is the
    content of its tokenizer.json."""
    model, splitter = described["model"], described["pre_tokenizer"] or {}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    wrong = [
        f"its model is {model['type']}" if model["type"] != "BPE" else "",
        "it drops merges at random" if model.get("dropout") else "",
        f"it changes characters ({described['normalizer']['type']})"
        if described["normalizer"]
        else "",
        *(f"it has {mark} {quoted(model[mark])}" for mark in MARKS if model.get(mark)),
        "" if byte_level.items() <= splitter.items() else "it splits texts into words differently",
        *(
            f"token {quoted(added['content'])} includes the spaces after it"
            for added in described["added_tokens"]
            if added["rstrip"] or re.search(r"\S\s", added["content"])
        ),
    ]
    lacking = sum(c not in vocabulary for c in ALPHABET.values())
    for reason in filter(None, wrong):
        raise ValueError(f"tokenizer {shown(path)} {OTHER}: {reason}")
    if lacking:
        raise ValueError(
            f"tokenizer {shown(path)} has no token for {lacking} of the 256 bytes, so texts would "
            f"lose characters; {REMEDY}"
        )

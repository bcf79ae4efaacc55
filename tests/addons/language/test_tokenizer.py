"""Tokenizers: characters, bytes, and byte-level BPE beside the libraries that define it."""

import io
import json
import random
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, hard_text, tokenizers, trained
from helpers.datafiles import refused

from nnmpi.addons.language.data.pieces import BEFORE_SPACE, pieces
from nnmpi.addons.language.data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    tokenizer_of,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("bpe"))


def test_characters() -> None:
    made = CharTokenizer.of("größer: 数, 😀!")
    ids = made.encode("größer")
    assert ids.dtype == "int64"
    assert made.decode(ids) == "größer"
    assert made.encode("größer".encode()).tolist() == ids.tolist()
    assert made.characters == "".join(sorted(set("größer: 数, 😀!")))
    again = tokenizer_of(made.describe())
    assert again.encode("数😀").tolist() == made.encode("数😀").tolist()
    assert again.size == made.size == 11
    in_any_order = CharTokenizer("cab")
    assert in_any_order.encode("abc").tolist() == [1, 2, 0]
    with refused("'x' at place 2", "not among the 3 characters"):
        in_any_order.encode("abx")
    with refused("has 3 characters, of which only 2 are different"):
        CharTokenizer("aba")


def test_bytes() -> None:
    made = tokenizer_of(ByteTokenizer().describe())
    assert made.size == 256
    assert made.encode("é").tolist() == [0xC3, 0xA9]
    assert made.encode(b"a\xff").tolist() == [97, 255]
    assert made.decode([0xC3, 0xA9, 0xFF]) == "é\ufffd"


@pytest.mark.parametrize("where", [".", "one", "one/tokenizer.json"])
def test_bpe_is_that_of_the_library(folder: Path, where: str) -> None:
    made = BPETokenizer(folder / where)
    known = tokenizers().ByteLevelBPETokenizer.from_file(
        str(folder / "vocab.json"), str(folder / "merges.txt")
    )
    known.add_special_tokens(["<|endoftext|>"])
    assert made.size == known.get_vocab_size()
    for text in [SAMPLE, *map(hard_text, range(200))]:
        ids = made.encode(text)
        assert ids.tolist() == known.encode(text).ids
        assert made.encode(text.encode()).tolist() == ids.tolist()
        assert made.decode(ids) == text
        assert made.lengths()[ids].sum() == len(text)
    again = tokenizer_of(made.describe())
    assert again.encode(SAMPLE).tolist() == made.encode(SAMPLE).tolist()


def test_bpe_is_that_of_transformers(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs the package transformers")
    known = transformers.GPT2Tokenizer(str(folder / "vocab.json"), str(folder / "merges.txt"))
    known.save_pretrained(tmp_path)  # a tokenizer.json
    made, saved = BPETokenizer(folder), BPETokenizer(tmp_path)
    for text in [SAMPLE, *map(hard_text, range(200))]:
        assert made.encode(text).tolist() == known.encode(text)
        assert saved.encode(text).tolist() == known.encode(text)
        ids = made.encode(text)
        assert made.decode(ids) == known.decode(ids, clean_up_tokenization_spaces=False)


def test_pieces_have_the_tokens_of_the_whole(folder: Path) -> None:
    made, rng, several = BPETokenizer(folder), random.Random(0), 0
    for seed in range(400):
        text = hard_text(seed).encode()
        parts = [*pieces(io.BytesIO(text), made.cuts, rng.randint(5, 30))]
        assert b"".join(parts) == text
        found = [made.encode(part) for part in parts]
        assert np.concatenate(found).tolist() == made.encode(text).tolist()
        several += len(parts) > 2
    assert several > 300


def test_a_text_is_cut_behind_no_white_space_of_unicode() -> None:
    points = [p for p in range(sys.maxunicode + 1) if not 0xD800 <= p < 0xE000]
    spaces = {p for p in points if unicodedata.category(chr(p)) in ("Zs", "Zl", "Zp", "Cc")}
    for point in {*points[::101], *spaces}:
        character = chr(point)
        found = [m.start() for m in BEFORE_SPACE.finditer(f"{character} x".encode())]
        if character.isspace() or unicodedata.category(character) in ("Zs", "Zl", "Zp"):
            assert found == [], hex(point)
        elif point > 0x20:
            assert found == [len(character.encode())], hex(point)


# ---- what cannot be used


def test_files_that_are_missing_or_broken(folder: Path, tmp_path: Path) -> None:
    remedy = "give a folder with vocab.json and merges.txt, or a tokenizer.json"
    with refused("nowhere is neither a file nor a folder", remedy):
        BPETokenizer(tmp_path / "nowhere")
    with refused("without vocab.json and merges.txt", remedy):
        BPETokenizer(tmp_path)
    vocabulary = (folder / "vocab.json").read_text()
    (tmp_path / "vocab.json").write_text(vocabulary)
    with refused("without merges.txt", remedy):
        BPETokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("not known\n")
    with refused("is damaged", remedy):
        BPETokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text((folder / "merges.txt").read_text())
    (tmp_path / "vocab.json").write_text(vocabulary[:-9])
    with refused("is damaged", remedy):
        BPETokenizer(tmp_path)
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0, "b": 1}))
    with refused("no token for 254 of the 256 bytes", remedy):
        BPETokenizer(tmp_path)
    for content in ("{", "[]", '{"model": null}', '{"model": []}', '{"model": {}}'):
        (tmp_path / "tokenizer.json").write_text(content)
        with refused("tokenizer.json is damaged", remedy):
            BPETokenizer(tmp_path)


def test_descriptions_that_do_not_fit(folder: Path) -> None:
    description = json.loads(BPETokenizer(folder).describe())
    digest = description["sha256"]
    with refused(f"has 400 tokens (SHA-256 {digest}), but 401 ({digest}) are expected"):
        tokenizer_of(json.dumps({**description, "size": 401}))
    with refused("but 400 (0123) are expected: it has been replaced"):
        tokenizer_of(json.dumps({**description, "sha256": "0123"}))
    wrong = "", "{}", "[]", "[" * 100_000, '{"kind": "words"}', '{"kind": ["bpe"]}'
    lacking = '{"kind": "characters"}', '{"kind": "characters", "characters": 5}', '{"kind": "bpe"}'
    for text in (*wrong, *lacking, json.dumps({**description, "path": 5})):
        with refused("is not the description of a tokenizer"):
            tokenizer_of(text)


def test_text_that_is_no_utf_8(folder: Path) -> None:
    with refused("is not UTF-8: byte 0xff after b'ab '", "leave the tokenizer out"):
        BPETokenizer(folder).encode(b"ab \xff c")

"""Tokenizers: characters, bytes, and byte-level BPE beside the libraries that define it."""

import io
import json
import os
import random
import sys
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, hard_text, tokenizers, trained
from helpers.datafiles import refused

from nnmpi.data.pieces import BEFORE_SPACE, next_cut, pieces
from nnmpi.data.tokenizer import (
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    in_words,
    tokenizer_of,
    vocabulary_of,
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
    with refused("'x' at place 2", "none of the 3 characters"):
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


def test_a_text_that_cannot_be_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnmpi.data.pieces.LONGEST", 100)
    for function in (
        lambda s: [*pieces(s, BEFORE_SPACE, 10)],
        lambda s: next_cut(s, 5, BEFORE_SPACE),
    ):
        with refused("bytes without a place where it can be cut"):
            function(io.BytesIO(b"x" * 500))


def test_a_vocabulary_is_the_same_at_any_path(folder: Path, tmp_path: Path) -> None:
    """Of BPE vocabulary and merges count, of characters their order."""
    known, merges = BPETokenizer(folder), "merges.txt"
    (tmp_path / "vocab.json").write_text((folder / "vocab.json").read_text())
    lines = (folder / merges).read_text().splitlines(keepends=True)
    (tmp_path / merges).write_text("".join(lines))
    assert vocabulary_of(BPETokenizer(tmp_path).describe()) == vocabulary_of(known.describe())
    (tmp_path / merges).write_text("".join(lines[:-1]))
    assert vocabulary_of(BPETokenizer(tmp_path).describe()) != vocabulary_of(known.describe())
    a, b = (vocabulary_of(CharTokenizer(text).describe()) for text in ("ab", "ba"))
    assert a != b
    assert in_words(CharTokenizer("ab").describe()) == "the characters 'ab'"


# ---- what cannot be used


def changed(folder: Path, to: Path, **changes: object) -> Path:
    """A tokenizer.json with other values."""
    found = json.loads((folder / "one" / "tokenizer.json").read_text())
    to.write_text(json.dumps({**found, **changes}))
    return to


def test_files_that_are_missing_or_broken(folder: Path, tmp_path: Path) -> None:
    remedy = "give a folder with vocab.json and merges.txt, or a tokenizer.json"
    with refused("nowhere is no file and no folder", remedy):
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


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer.json"])
def test_files_that_would_be_read_for_ever(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in ("vocab.json", "merges.txt", "one/tokenizer.json"):
        (tmp_path / Path(file).name).write_bytes((folder / file).read_bytes())
    monkeypatch.setattr("nnmpi.data.bpe.LARGEST", 50_000)
    BPETokenizer(tmp_path)
    with (tmp_path / name).open("a") as file:
        file.truncate(60_000)
    with refused(f"{name} cannot be read: more than 50,000 bytes (60,000)"):
        BPETokenizer(tmp_path)
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with refused(f"{tmp_path / name} cannot be read: not a regular file; give a folder"):
        BPETokenizer(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with refused(f"{tmp_path / name} cannot be read: not a regular file"):
        BPETokenizer(tmp_path)


def test_json_that_is_nested_too_deeply(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "merges.txt").write_text((folder / "merges.txt").read_text())
    for name in ("vocab.json", "tokenizer.json"):
        (tmp_path / name).write_text('{"a":' * 100_000)
        with refused(f"{tmp_path / name}", "is damaged"):
            BPETokenizer(tmp_path)


def test_tokenizers_of_another_kind(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    words = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    added = {"id": 0, "content": "<|endoftext|>", "single_word": False, "lstrip": False}
    added |= {"rstrip": True, "normalized": False, "special": True}
    for changes, message in (
        ({"normalizer": {"type": "NFC"}}, "changes characters (NFC)"),
        ({"pre_tokenizer": words}, "divides texts into other words"),
        ({"added_tokens": [added]}, "'<|endoftext|>' takes the spaces behind it"),
    ):
        with refused(str(path), "is not byte-level BPE as of GPT-2", message):
            BPETokenizer(changed(folder, path, **changes))
    found = json.loads((folder / "one" / "tokenizer.json").read_text())["model"]
    with refused("drops merges at random"):
        BPETokenizer(changed(folder, path, model={**found, "dropout": 0.1}))
    with refused("it has end_of_word_suffix '</w>'"):
        BPETokenizer(changed(folder, path, model={**found, "end_of_word_suffix": "</w>"}))


def test_a_file_may_lack_the_decoder(folder: Path, tmp_path: Path) -> None:
    made = BPETokenizer(changed(folder, tmp_path / "tokenizer.json", decoder=None))
    assert made.decode(made.encode(SAMPLE)) == SAMPLE


def test_a_file_may_ask_for_truncation_and_padding(folder: Path, tmp_path: Path) -> None:
    made = tokenizers().Tokenizer.from_file(str(folder / "one" / "tokenizer.json"))
    made.enable_truncation(5)
    made.enable_padding(length=500)
    made.save(str(tmp_path / "tokenizer.json"))
    ids = BPETokenizer(tmp_path).encode(SAMPLE)
    assert ids.tolist() == BPETokenizer(folder).encode(SAMPLE).tolist()


def test_descriptions_that_do_not_fit(folder: Path) -> None:
    description = json.loads(BPETokenizer(folder).describe())
    digest = description["sha256"]
    with refused(f"has 400 tokens (SHA-256 {digest}), and 401 ({digest}) are expected"):
        tokenizer_of(json.dumps({**description, "size": 401}))
    with refused("and 400 (0123) are expected: it has been replaced"):
        tokenizer_of(json.dumps({**description, "sha256": "0123"}))
    wrong = "", "{}", "[]", "[" * 100_000, '{"kind": "words"}', '{"kind": ["bpe"]}'
    lacking = '{"kind": "characters"}', '{"kind": "characters", "characters": 5}', '{"kind": "bpe"}'
    for text in (*wrong, *lacking, json.dumps({**description, "path": 5})):
        with refused("describes no tokenizer"):
            tokenizer_of(text)


def test_text_that_is_no_utf_8(folder: Path) -> None:
    with refused("is not UTF-8: byte 0xff behind b'ab '", "leave the tokenizer out"):
        BPETokenizer(folder).encode(b"ab \xff c")

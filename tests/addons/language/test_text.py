"""Text as windows of tokens."""

import os
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, trained
from helpers.datafiles import checked, refused

from nnmpi import data
from nnmpi.addons.language import tokenize_command as tokenize
from nnmpi.addons.language.data.text import characters, tokenizer_of_points, tokens_of
from nnmpi.addons.language.data.tokenizer import tokenizer_of
from nnmpi.addons.language.data.windows import windows


def test_the_text_of_the_library() -> None:
    dataset = data.load("text", context=100)
    assert dataset.classes == 63
    assert dataset.train.x.shape == (8547, 100)
    assert dataset.test.x.shape == (949, 100)
    assert "949,740 characters of a vocabulary of 63, in windows of 100" in dataset.note
    assert dataset.language.tokens_a_unit == 1
    assert dataset.language.unit == "character"


def test_text_and_files_of_tokens_are_valid_datasets(tmp_path: Path) -> None:
    text, file = tmp_path / "text", tmp_path / "t.npy"
    text.write_text("abcd" * 1000)
    assert tokenize.main([str(text), "--out", str(file)]) == 0
    for spec in ("text", f"tokens:{file}"):
        dataset = checked(spec, tmp_path)
        assert dataset.name.startswith(spec.partition(":")[0])
        for x, y in (dataset.train, dataset.test):
            assert y.shape == x.shape


def test_labels_are_the_tokens_behind() -> None:
    tokens = np.arange(20, dtype="uint8")
    x, y = windows(tokens, 6)
    np.testing.assert_array_equal(x, np.arange(18).reshape(3, 6))
    np.testing.assert_array_equal(y[:], x[:] + 1)
    x, y = windows(tokens[:18], 6)  # the last token is a label only
    assert len(x) == 2


@pytest.mark.parametrize(
    ("text", "size", "unit"),
    [("größer: 数, 😀!".encode(), 11, "character"), (b"a\xff\xfeb", 256, "byte")],
)
def test_a_token_is_a_character_or_a_byte(text: bytes, size: int, unit: str) -> None:
    made = tokenizer_of_points(characters([text[:2], text[2:]] if size == 256 else [text]))
    tokens = tokens_of(text, made)
    assert (made.size, made.unit, tokens.dtype) == (size, unit, "uint8")
    assert tokens.tolist() == made.encode(text).tolist()
    assert made.decode(tokens) == text.decode("utf-8", "replace")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a text"
    path.write_text("abcd" * 50)
    dataset = data.load(f"text:{path}", context=8)
    assert dataset.classes == 4
    assert len(dataset.train.y) == 22
    assert len(dataset.test.y) == 2


def test_a_file_by_a_tokenizer(tmp_path: Path) -> None:
    folder, path = trained(tmp_path / "bpe"), tmp_path / "text"
    path.write_text(SAMPLE * 50)
    dataset = data.load(f"text:{path}", context=8, tokenizer=str(folder))
    made = tokenizer_of(dataset.language.tokenizer)
    ids = made.encode(SAMPLE * 50)
    assert dataset.classes == made.size == 400
    n, kept = len(ids), len(ids) // 10
    assert f"{n:,} tokens of a vocabulary of 400" in dataset.note
    np.testing.assert_array_equal(np.ravel(dataset.test.x), ids[n - kept :][: dataset.test.x.size])
    characters_held_out = made.lengths()[ids[n - kept :]].sum()
    assert dataset.language.tokens_a_unit == kept / characters_held_out
    path.write_bytes(SAMPLE.encode() + b"\xff")
    with refused("text: the text is not UTF-8: byte 0xff"):
        data.load(f"text:{path}", context=8, tokenizer=str(folder))
    with refused("--tokenizer is for --data text:FILE, and the data set is 'digits'"):
        data.load("digits", tokenizer=str(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 characters, of which the last 0 are held out: a window takes 9"),
        (b"a" * 89, "has 89 characters, of which the last 8 are held out"),
        (b"\xff" * 20, "has 20 bytes"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_used_is_refused(content, message, tmp_path: Path) -> None:
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with refused(message):
        data.load(f"text:{path}", context=8)


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_a_pipe_is_refused_before_it_is_opened(kind: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused(f"{tmp_path / 'pipe'} cannot be read: not a regular file"):
        data.load(f"{kind}:{tmp_path / 'pipe'}", context=8)

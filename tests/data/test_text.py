"""Text as windows of tokens."""

from pathlib import Path

import numpy as np
import pytest

from nnmpi import data
from nnmpi.data.text import tokens_of, windows


def test_the_text_of_the_library() -> None:
    dataset = data.load("text", context=100)
    assert dataset.classes == 63
    assert dataset.train.x.shape == (8547, 100)
    assert dataset.test.x.shape == (949, 100)
    assert "949,740 characters, 63 different ones, in windows of 100" in dataset.note


def test_labels_are_the_tokens_behind() -> None:
    tokens = np.arange(20)
    x, y = windows(tokens, 6)
    np.testing.assert_array_equal(x, np.arange(18).reshape(3, 6))
    np.testing.assert_array_equal(y, x + 1)
    x, y = windows(tokens[:18], 6)  # the last token is a label only
    assert len(x) == 2


def test_a_token_is_a_character_or_a_byte() -> None:
    text = "größer: 数, 😀!"
    tokens, vocabulary = tokens_of(text.encode())
    assert "".join(vocabulary.characters[t] for t in tokens) == text
    assert vocabulary.size == len(set(text))
    tokens, vocabulary = tokens_of(b"a\xff\xfeb")
    assert tokens.tolist() == [97, 255, 254, 98]
    assert (vocabulary.size, vocabulary.unit) == (256, "bytes")


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a text"
    path.write_text("abcd" * 50)
    dataset = data.load(f"text:{path}", context=8)
    assert dataset.classes == 4
    assert len(dataset.train.y) == 22
    assert len(dataset.test.y) == 2


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
    with pytest.raises(ValueError, match=message) as error:
        data.load(f"text:{path}", context=8)
    assert "\n" not in str(error.value)

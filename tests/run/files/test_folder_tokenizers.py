"""The tokenizer of a model in a folder: it is saved there, and moves with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, trained
from helpers.datafiles import refused

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import comm_self
from nnmpi.data.tokenizer import BPETokenizer, CharTokenizer
from nnmpi.run.setup.models import saved_sizes
from nnmpi.run.setup.vocabulary import own_tokenizer
from nnmpi.run.text import generate_command


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text").write_text(SAMPLE * 60)
    return f"text:{tmp_path / 'text'}"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The folder of a tokenizer that is given."""
    return trained(tmp_path / "source")


def save(folder: Path, text: str, **options: object) -> None:
    """Saves a model of the text into a folder."""
    config = Config(**{"model": "gpt:1x2x4", **options}, data=text, context=8)
    with Trainer(config, comm=comm_self()) as made:
        made.save(f"{folder}/")


def described(folder: Path) -> str:
    """The path of the tokenizer in the metadata."""
    metadata = nnmpi.load(folder / "model.safetensors", with_metadata=True)[1]
    return str(json.loads(metadata["tokenizer"])["path"])


def generates(folder: Path, capsys: pytest.CaptureFixture[str]) -> bool:
    given = ["--load", str(folder), "--prompt", "It's", "--tokens", "3"]
    return generate_command.main(given) == 0 and capsys.readouterr().out.startswith("It's")


@pytest.mark.parametrize("form", ["", "one", "one/tokenizer.json"])
def test_a_folder_may_be_moved(
    form: str, text: str, source: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    given = BPETokenizer(source / form)
    save(tmp_path / "a", text, tokenizer=str(source / form))
    assert described(tmp_path / "a") == "tokenizer.json"
    shutil.rmtree(source)
    moved = (tmp_path / "a").rename(tmp_path / "b")
    monkeypatch.chdir("/")  # a relative path is of the folder
    found = own_tokenizer(str(moved))
    assert isinstance(found, BPETokenizer)
    assert (found.size, found.sha256) == (given.size, given.sha256)
    np.testing.assert_array_equal(found.encode(SAMPLE), given.encode(SAMPLE))
    assert generates(moved, capsys)
    save(tmp_path / "c", text, load=str(moved), model=Config().model)
    moved.rename(tmp_path / "d")
    assert generates(tmp_path / "c", capsys)


def test_another_tokenizer_in_the_folder_is_replaced(text: str, source: Path, tmp_path) -> None:
    other = trained(tmp_path / "a", 300)
    shutil.copy(other / "one" / "tokenizer.json", other)
    save(other, text, tokenizer=str(source))
    assert BPETokenizer(other).sha256 == BPETokenizer(source).sha256


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("gpt:3000x2x4", "number of layers is 3,000, and that of the weights 1"),
        ("gpt:999999999x2x4", "number of layers is 999,999,999, and that of the weights 1"),
        ("gpt:1x2x800", "wte.weight has shape (3, 4), the model needs (3, 800)"),
        ("gpt:1x3x4", "3 heads and width 4"),
    ],
)
def test_metadata_that_tell_another_gpt_are_refused(model: str, words: str, tmp_path: Path) -> None:
    about = {"model": model, "tokenizer": CharTokenizer("abc").describe()}
    nnmpi.save(nn.GPT(1, 2, 4, 3, 5).state_dict(), tmp_path / "m", about)
    with refused(f"{tmp_path / 'm'}: ", words):
        saved_sizes(str(tmp_path / "m"))

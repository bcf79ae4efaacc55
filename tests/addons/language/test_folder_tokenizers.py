"""The tokenizer of a model in a folder: it is saved there, and moves with it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, trained

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.addons.language.data.tokenizer import BPETokenizer
from nnmpi.addons.language.run import generate_command
from nnmpi.comm import comm_self
from nnmpi.run.setup.datasets import data_options


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
    given_by = {"data": f"text:{text}", "load": str(moved)}  # and by no other option of its data
    assert data_options(Config(**given_by, load_partial=True))["tokenizer"] is None
    found = data_options(Config(**given_by))["tokenizer"]
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

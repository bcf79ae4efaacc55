"""`python -m nnmpi.generate`: text behind a prompt, from files of the train command."""

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import Command
from helpers.mpijob import environment, run
from helpers.refusals import check, refused

import nnmpi
from nnmpi import nn, train
from nnmpi.addons.language.data.tokenizer import CharTokenizer
from nnmpi.addons.language.models.gpt2 import save_gpt2
from nnmpi.addons.language.run import generate_command

TEXT = "the quick brown fox jumps over the lazy dog, and back again. " * 40
TRAIN = "--model gpt:1x2x8 --data text:words.txt --context 16 --steps 3 --batch-size 8 --quiet"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, and a folder of GPT-2, of a model that has seen a few characters."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "words.txt").write_text(TEXT)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for where in ("one.safetensors", "gpt2/"):
            assert train.main([*TRAIN.split(), "--save", where]) == 0
    return folder


def text(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert generate_command.main([*map(str, arguments)]) == 0
    found = capsys.readouterr()
    assert found.err == ""
    return found.out


def test_a_file_and_a_folder_give_the_same_text(trained: Path, capsys) -> None:
    prompt = ("--prompt", "the quick", "--tokens", "30")  # more than the 16 positions
    texts = [
        text(capsys, "--load", trained / name, *prompt, *more)
        for name in ("one.safetensors", "gpt2")
        for more in ((), ("--seed", "1"), ("--temperature", "0"))
    ]
    assert texts[:3] == texts[3:]
    assert len({*texts}) == 3
    for found in texts:
        assert found.startswith("the quick")
        assert len(found) == len("the quick") + 30 + 1  # a line's end
        assert {*found} <= {*TEXT, "\n"}


def test_special_tokens_of_a_folder_begin_and_end_a_text(trained: Path, tmp_path, capsys) -> None:
    """Of the folder, and of a file of a model that was loaded from it; they are not shown."""
    letters = "".join(sorted({*TEXT}))
    tokenizer = CharTokenizer(letters)
    shutil.copytree(trained / "gpt2", tmp_path / "gpt2")
    options = ("--tokens", "40", "--temperature", "0.5", "--seed", "3")
    full = text(capsys, "--load", tmp_path / "gpt2", "--prompt", "q", *options)[1:-1]
    end = full[20]
    special = {"bos_token_id": tokenizer.encode("q").tolist(), "eos_token_id": letters.index(end)}
    (tmp_path / "gpt2/generation_config.json").write_text(json.dumps(special))
    again = ["--load", f"{tmp_path}/gpt2/", "--data", f"text:{trained}/words.txt", "--quiet"]
    again += ["--context", "16", "--steps", "1", "--lr", "1e-30"]
    assert train.main([*again, "--save", f"{tmp_path}/file"]) == 0
    capsys.readouterr()
    for name in ("gpt2", "file"):
        assert text(capsys, "--load", tmp_path / name, *options) == full[: full.index(end)] + "\n"


def test_the_metadata_describe_the_model_and_its_tokens(trained: Path) -> None:
    for path in ("one.safetensors", "gpt2/model.safetensors"):
        _, metadata = nnmpi.load(trained / path, with_metadata=True)
        assert metadata["model"] == "gpt:1x2x8"
        assert metadata["tokenizer"] == CharTokenizer(sorted({*TEXT})).describe()


@pytest.mark.parametrize("layout", [pytest.param("--tp", marks=pytest.mark.long), "--pp"])
def test_two_ranks_write_what_one_does(layout: str, tmp_path: Path, capsys) -> None:
    """Two layers, so that a stage has one; the first rank alone prints."""
    state, tokenizer = nn.GPT(2, 2, 8, 26, 8), CharTokenizer("abcdefghijklmnopqrstuvwxyz")
    about = {"model": "gpt:2x2x8", "tokenizer": tokenizer.describe()}
    nnmpi.save(state.state_dict(), tmp_path / "m", about)
    options = ["--load", str(tmp_path / "m"), "--prompt", "abc", "--tokens", "12"]
    options += ["--dtype", "float64", "--top-k", "20"]
    wanted = text(capsys, *options)
    ended = run(2, "-m", "nnmpi.generate", *options, layout, "2")
    assert (ended.status, ended.out) == (0, wanted), ended.err


def test_text_comes_token_by_token(trained: Path) -> None:
    """A reader of a pipe has the first words long before the end; its going ends the command."""
    arguments = ["--load", str(trained / "gpt2"), "--prompt", "the", "--tokens", "1000000"]
    with subprocess.Popen(
        [sys.executable, "-m", "nnmpi.generate", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment({}),
    ) as job:
        assert job.stdout.read(10).startswith(b"the")
        job.stdout.close()
        assert job.wait(60) == 1
        assert job.stderr.read() == b""


@refused("generate")
def test_bad_input_gets_one_line(
    said: str, words: list[str], command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the directory of the fixture `command`."""
    save_gpt2(nn.GPT(1, 1, 4, 3, 5), "small")
    for name, characters in (("few", "abc"), ("many", "abcd")):
        about = {"model": "gpt:1x1x4", "tokenizer": CharTokenizer(characters).describe()}
        nnmpi.save(nn.GPT(1, 1, 4, 3, 5).state_dict(), name, about)
    check(generate_command.main, said, words, capsys)


def test_a_prompt_that_is_no_utf_8_is_refused(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = f"generate --load {trained}/one.safetensors --prompt A\udcff"
    check(generate_command.main, said, ["prompt: it is not UTF-8 at position 1; give text"], capsys)


def test_tokens_that_the_tokenizer_lacks_are_never_drawn(tmp_path: Path, capsys) -> None:
    """A model may have more tokens than its tokenizer."""
    model = nn.GPT(1, 1, 4, 90, 5)
    model.ln_f.bias.data[...] = np.ones(4)
    model.wte.weight.data[3:] += 9  # they score more than all others
    about = {"model": "gpt:1x1x4", "tokenizer": CharTokenizer("abc").describe()}
    nnmpi.save(model.state_dict(), tmp_path / "m", about)
    found = text(capsys, "--load", tmp_path / "m", "--prompt", "ab", "--tokens", "20")
    assert {*found.strip()} <= {*"abc"}


def test_an_import_of_the_command_says_what_to_write() -> None:
    with pytest.raises(ImportError, match="write `from nnmpi import generate`, or start"):
        importlib.import_module("nnmpi.generate")
    assert callable(nnmpi.generate)

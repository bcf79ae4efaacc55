"""Files of tokens: the same from any number of ranks, whole or not at all; training from them."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.bpe import SAMPLE, hard_text, trained
from helpers.datafiles import refused
from helpers.mpijob import run

from nnmpi import Config, Trainer, data
from nnmpi.addons.language import tokenize_command as tokenize
from nnmpi.addons.language.data.pieces import next_cut, pieces
from nnmpi.addons.language.data.tokenizer import BPETokenizer, CharTokenizer, tokenizer_of
from nnmpi.addons.language.data.windows import TokenInfo
from nnmpi.comm import comm_self, thread_ranks

TEXTS = {
    "characters": "".join(map(hard_text, range(60))).encode(),
    "bytes": bytes(range(256)) * 20,
    "tokens": ("".join(map(hard_text, range(60))) + SAMPLE * 9).encode(),
    "one character": b"a",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("bpe"))


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are read in pieces of few bytes."""
    for function in (
        pieces,
        next_cut,
    ):
        monkeypatch.setattr(function, "__defaults__", (50, *(function.__defaults__ or ())[1:]))
    monkeypatch.setattr(tokenize, "BLOCK", 64)


def written(ranks: int, text: Path, out: Path, tokenizer: str | None) -> bytes:
    """The file that so many ranks write."""
    for found in thread_ranks.run(ranks, lambda c: tokenize.tokenized(text, out, tokenizer, c)):
        assert found["ranks"] == ranks
    assert [path.name for path in out.parent.iterdir() if path.suffix == ".part"] == []
    return out.read_bytes()


@pytest.mark.parametrize("what", TEXTS)
@pytest.mark.usefixtures("small_pieces")
def test_the_file_is_the_same_for_any_number_of_ranks(
    what: str, folder: Path, tmp_path: Path
) -> None:
    text, out = tmp_path / "text", tmp_path / "tokens.npy"
    text.write_bytes(TEXTS[what])
    tokenizer = str(folder) if what == "tokens" else None
    one = written(1, text, out, tokenizer)
    for ranks in (2, 3, 4, 7):
        assert written(ranks, text, out, tokenizer) == one
    tokens = np.load(out)
    about = json.loads(one.splitlines()[-1])
    made = tokenizer_of(about["tokenizer"])
    assert tokens.tolist() == made.encode(TEXTS[what]).tolist()
    assert tokens.dtype == np.min_scalar_type(made.size - 1)
    assert about["size"] == made.size
    held_out = tokens[len(tokens) - len(tokens) // 10 :]
    assert about["held_out_units"] == made.lengths()[held_out].sum()
    if tokenizer is None:
        from_text = data.load(f"text:{text}", context=1) if len(tokens) > 50 else None
        assert from_text is None or from_text.language.tokenizer == about["tokenizer"]


@pytest.mark.parametrize("ranks", [2, *(pytest.param(p, marks=pytest.mark.long) for p in (1, 3))])
def test_the_command_on_ranks(ranks: int, folder: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "tokens.npy"
    text.write_bytes(TEXTS["tokens"])
    found = run(
        ranks, "-m", "nnmpi.tokenize", text, "--out", out, "--tokenizer", folder, timeout=60
    )
    assert (found.status, found.err) == (0, "")
    ids = BPETokenizer(folder).encode(TEXTS["tokens"])
    assert np.load(out).tolist() == ids.tolist()
    assert f"{len(ids):,} tokens of a vocabulary of 400, as uint16 in" in found.out
    assert len(found.out.splitlines()) == 1


def test_an_error_of_one_rank_ends_all(folder: Path, tmp_path: Path) -> None:
    text, out = tmp_path / "text", tmp_path / "tokens.npy"
    out.write_bytes(b"old")
    text.write_bytes(b"word " * 100 + b"\xff" + b" word" * 10)  # in the part of the last rank
    with refused("text: the text is not UTF-8: byte 0xff after"):
        thread_ranks.run(2, lambda comm: tokenize.tokenized(text, out, str(folder), comm))
    assert out.read_bytes() == b"old"
    assert {path.name for path in tmp_path.iterdir()} == {"text", "tokens.npy"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere", "--out", "t.npy"], "give a file of text"),
        (["pipe", "--out", "t.npy"], "pipe cannot be read: not a regular file; give a file"),
        (["text", "--out", "t"], "out t must end with .npy"),
        (["empty", "--out", "t.npy"], "empty is empty; give a file of text"),
        (["text", "--out", "t.npy", "--tokenizer", "no"], "no is neither a file nor a folder"),
        (["text"], "the following arguments are required: --out"),
    ],
)
def test_arguments_that_cannot_be_used(
    arguments: list[str], message: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("text").write_text("abc")
    Path("empty").touch()
    if "--tokenizer" in arguments:
        pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    os.mkfifo("pipe")
    assert tokenize.main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert {*os.listdir()} == {"text", "empty", "pipe"}


# ---- training from the file


@pytest.fixture
def out(tmp_path: Path, capsys) -> Path:
    """The tokens of a text by characters."""
    (tmp_path / "text").write_text("the lazy dog. " * 300)
    out = tmp_path / "tokens.npy"
    assert tokenize.main([str(tmp_path / "text"), "--out", str(out), "--json"]) == 0
    event = json.loads(capsys.readouterr().out)
    assert (event["tokens"], event["vocabulary"], event["dtype"]) == (4200, 12, "uint8")
    return out


def test_the_tokens_stay_in_the_file(out: Path) -> None:
    found, same = (
        data.load(spec, context=16) for spec in (f"tokens:{out}", f"text:{out.with_name('text')}")
    )
    assert found.language == same.language
    for a, b in zip((*found.train, *found.test), (*same.train, *same.test), strict=True):
        np.testing.assert_array_equal(a, b)
    config = Config(model="gpt:1x2x8", data=f"tokens:{out}", context=16, batch_size=8, steps=3)
    with Trainer(config) as trainer:
        result = trainer.fit()
        for loader in (trainer.train, trainer.test):
            for windows in (loader.split.x, loader.split.y):
                assert isinstance(windows.stored, np.memmap)
                assert windows.stored.dtype == "uint8"
    with Trainer(replace(config, data=f"text:{out.with_name('text')}")) as trainer:
        assert trainer.fit()["parameters_sha256"] == result["parameters_sha256"]


def test_what_is_taken_is_what_the_file_has(out: Path) -> None:
    """Rows alone and behind one another, in any order."""
    tokens = np.load(out)[: 4200 * 9 // 10]
    n = (len(tokens) - 1) // 16
    split = data.load(f"tokens:{out}", context=16).train
    for i, windows in enumerate(split):
        whole = tokens[i : i + n * 16].reshape(n, 16).astype("int64")
        assert windows.shape == whole.shape
        np.testing.assert_array_equal(np.asarray(windows), whole)
        for index in (slice(3, 9), slice(None, None, 7), slice(9, 3, -1), 5, -1, [4, 2, 2, 3]):
            np.testing.assert_array_equal(windows[index], whole[index], strict=True)
        for rows in ([], [0], [5, 6, 7, 3, 4, 4, 100, 101], range(n)):
            taken = windows.take(np.array(rows, np.int64), axis=0)
            np.testing.assert_array_equal(taken, whole[[*rows]], strict=True)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_only_the_rows_of_a_batch_are_read(tmp_path: Path) -> None:
    """The file has 256 MB, most of which is a hole: a step of training takes little memory."""
    out, n = tmp_path / "tokens.npy", 1 << 28
    about = TokenInfo('{"kind": "bytes"}', 256, "bytes", "byte", n // 10)
    with out.open("wb") as file:
        file.write(tokenize._header(np.dtype("uint8"), n))
        file.truncate(file.tell() + n)
        file.seek(0, os.SEEK_END)
        file.write(about.line())
    before = resident()
    config = Config(model="gpt:1x2x8", data=f"tokens:{out}", context=256, batch_size=4, steps=1)
    with Trainer(config) as trainer:
        next(trainer.strategy.steps(trainer.train, trainer.state))
        assert len(trainer.train.split.y) == (n * 9 // 10) // 256
        assert resident() - before < 64 << 20


def resident() -> int:
    """Bytes in memory that this process has to itself: pages of files are not among them."""
    _, resident, of_files = map(int, Path("/proc/self/statm").read_text().split()[:3])
    return (resident - of_files) * os.sysconf("SC_PAGE_SIZE")


def test_files_that_cannot_be_used(out: Path, tmp_path: Path) -> None:
    content, bad = out.read_bytes(), tmp_path / "bad.npy"
    remedy = "write it again with python -m nnmpi.tokenize"
    header, end = 128, 128 + 4200

    def load() -> None:
        data.load(f"tokens:{bad}", context=16)

    for length, message in (
        (end - 1, "bad.npy is damaged: mmap length is greater than file size"),
        (end, "the 0 bytes after its tokens are not a description by"),
        (len(content) - 5, "bytes after its tokens are not a description by"),
        (header - 1, "bad.npy is damaged"),
        (0, "bad.npy is damaged"),
    ):
        bad.write_bytes(content[:length])
        with refused(message, remedy):
            load()
    np.save(bad, np.zeros((3, 4)))
    with refused("holds float64 of shape (3, 4), but tokens are unsigned integers", remedy):
        load()
    bad.write_text("no array")
    with refused("bad.npy is damaged", remedy):
        load()
    with refused("nowhere.npy cannot be read: ", remedy):
        data.load(f"tokens:{tmp_path / 'nowhere.npy'}")
    with refused("has 4,200 characters, of which the last 420 are held out: a window takes 421"):
        data.load(f"tokens:{out}", context=420)


def test_tokens_that_are_none_of_the_vocabulary(out: Path) -> None:
    content = bytearray(out.read_bytes())
    content[128:200] = b"\xc8" * 72
    out.write_bytes(content)
    config = Config(model="gpt:1x2x8", data=f"tokens:{out}", context=16, epochs=1, quiet=True)
    with refused("200", "12"), Trainer(config) as trainer:
        trainer.fit()


def test_a_model_of_another_vocabulary(out: Path, tmp_path: Path) -> None:
    saved = str(tmp_path / "m.safetensors")
    config = Config(model="gpt:1x2x8", data=f"tokens:{out}", context=16, steps=1, save=saved)
    with Trainer(config) as trainer:
        trainer.fit()
    (tmp_path / "bad").write_text("abcdefg" * 200)
    (tmp_path / "other").write_text("lazy hog " * 200)
    other = Config(model="gpt:1x2x8", data=f"text:{tmp_path / 'other'}", context=16, load=saved)
    with refused("text:", "character 'b' at place 1 of the text is not among the 12 characters"):
        Trainer(replace(other, data=f"text:{tmp_path / 'bad'}"))
    with Trainer(other) as trainer:
        assert trainer.dataset.language.tokenizer == CharTokenizer.of("the lazy dog. ").describe()
    path = tmp_path / "tokens-of-another.npy"
    (tmp_path / "other").write_text("abcdeghlotyz" * 200)
    tokenize.tokenized(tmp_path / "other", path, None, comm_self())
    with refused(
        f"--load {saved} was trained on the characters ' .adeghlotyz', and data tokens:{path.name}",
        "has the characters 'abcdeghlotyz'; give the model's tokenizer with --tokenizer",
    ):
        Trainer(replace(other, data=f"tokens:{path}"))
    for same in (out, tmp_path / "text"):
        kind = "tokens" if same == out else "text"
        Trainer(replace(config, data=f"{kind}:{same}", load=saved)).close()
    Trainer(replace(config, data=f"tokens:{path}", load=saved, load_partial=True)).close()

"""The command: unusable arguments."""

from pathlib import Path
from typing import Any

import pytest
from helpers.commands import IRIS, LONG, Command

WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    # arguments
    "flag": ("--frobnicate 3", ("--frobnicate",)),
    "abbreviation": ("--epoch 3", ("--epoch",)),
    "stray word": ("digits", ("digits",)),
    "no value": ("--lr", ("--lr", "expected one argument")),
    "word for a number": ("--lr fast", ("--lr", "'fast'")),
    "schedule": ("--lr-schedule step:0", ("'step:0'", "cosine")),
    # models
    "model": ("--model resnet", ("'resnet'", "digits-cnn", "package.module:function")),
    "mlp of no digits": ("--model mlp:²-3", ("'mlp:²-3'", "mlp:784-1024-10")),
    "mlp without end": (f"--model mlp:4-{'9' * 5000}-3", ("'mlp:4-9999", "4,096 characters")),
    "module": ("--model no_such.models:make", ("'no_such'", "PYTHONPATH")),
    "function": ("--model own_package.models:mak", ("own_package.models", "'mak'")),
    "broken module": ("--model own_package.broken:make", ("(broken.py, line 1)",)),
    "failing module": ("--model own_package.fails:make", ("fails.py, line 2)",)),
    "module that exits": ("--model own_package.exits:make", ("SystemExit: 3 (",)),
    "no function": ("--model own_package.models:number", ("'int' object is not callable",)),
    "instance": ("--model own_package.models:instance", ("is an nn.Module", "function")),
    "arguments": ("--model own_package.models:wide", ("without arguments", "'width'")),
    "no module": ("--model own_package.models:none", ("must return an nn.Module", "[1, 2]")),
    # data
    "data": ("--data cifar", ("'cifar'", "iris", "FILE.npz")),
    "no npz": ("--data none.npz", ("none.npz is not a file",)),
    "broken npz": ("--data broken.npz", ("broken.npz",)),
    "no images": ("--data mnist --data-dir .", ("train-images-idx3-ubyte", "--download")),
    "synthetic": ("--data synthetic:8", ("synthetic:8", "CxHxW")),
    # both
    "tables for a CNN": ("--data iris", ("and data iris do not fit", "samples are of shape 4")),
    "images for a table": ("--model iris-mlp", ("do not fit", "1x8x8", "must be 4")),
    "classes": ("--model mlp:64-9", ("(9,)", "10 classes")),
    "device": ("--device tpu", ("--device", "'tpu'", "cpu")),
    # files
    "nowhere to save": ("--save none/m.safetensors", ("cannot save", "make it first")),
    "save a directory": ("--save own_package", ("cannot save", "it is a directory")),
    "nowhere to log": ("--log none/run.jsonl", ("none/run.jsonl", "No such file", "another")),
    "long data": (f"--data {LONG}.npz", (LONG[:99], "304 characters", "too long")),
    "load": ("--load none.safetensors", ("nnmpi.train: cannot load none.safetensors: no such",)),
    "load half": ("--load half.safetensors", ("half.safetensors", "not a complete safetensors")),
    "load another": ("--load foreign.safetensors", ("foreign.safetensors", "not a complete")),
    "load too little": (
        "--load iris.safetensors",
        ("--load iris", "does not fit", "only the model has", "only the state has"),
    ),
    "two lines": ("--model a\nb --save c\n/d", (r"cannot save c\n/d",)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_unusable_arguments_are_a_one_line_error(
    command: Command, case: Any, more: tuple[str]
) -> None:
    text, words = case
    completed = command(*text.split(" "), *more)
    assert (completed.status, completed.out) == (2, "")
    line = completed.err.removesuffix("\n")
    assert line.startswith("nnmpi.train: ")
    assert len(line.splitlines()) == 1
    assert [word for word in words if word not in line] == [], line


def test_a_model_too_large_for_memory_is_drawn_on_paper_alone(command: Command) -> None:
    model = "--model", "mlp:64-4000000-4000000", "--data", "digits"
    completed = command(*model)
    assert (completed.status, completed.out) == (2, "")
    assert completed.err.startswith("nnmpi.train: out of memory: ")
    assert completed.err.endswith("; take a smaller model or less data\n")
    drawn = command(*model, "--dry-run")
    assert drawn.status == 0, drawn.err
    assert drawn.events[0]["kinds"][0]["parameters_bytes"] == 64_001_056_000_000
    larger = command("--model", "mlp:64-10000000-10000000", "--data", "digits", "--dry-run")
    assert (larger.status, larger.out) == (2, "")
    assert "(10000000, 10000000) and type float32 has 400,000,000,000,000 bytes, more" in larger.err


NO_LOG = "it exists, and is not a log of nnmpi; name another file"
OVERWRITES: dict[str, tuple[str, str]] = {
    "save": ("--log ./m --save m", "is also the file of save; name another"),
    "load": ("--log ./iris.safetensors --load iris.safetensors", NO_LOG),
    "data": ("--log own.npz --data own.npz", NO_LOG),
    "config": ("--log good.toml --config ./good.toml", NO_LOG),
    "config in itself": ("--config logs.toml", NO_LOG),
}


@pytest.mark.parametrize("case", OVERWRITES.values(), ids=OVERWRITES)
def test_outputs_do_not_overwrite_files_of_the_run(
    command: Command, case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, why = case
    Path("good.toml").write_text("epochs = 1")
    Path("logs.toml").write_text('log = "logs.toml"')
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    completed = command(*IRIS, *text.split())
    assert (completed.status, completed.out) == (2, "")
    assert why in completed.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "value", "remedy"),
    [
        ("NNMPI_TIMEOUT", "abc", "seconds above 0 or not at all"),
        ("NNMPI_TIMEOUT", "nan", "seconds above 0 or not at all"),
        ("NNMPI_DEBUG", "1", "'collectives' or not at all"),
        ("NNMPI_TUNE", "no", "0, 1 or not at all"),
        (
            "NNMPI_NATIVE",
            "sse",
            "0, 1 or one of amx, avx512bf16, avx512, avx2, baseline, or not at all",
        ),
    ],
)
def test_an_unusable_environment_is_a_one_line_error(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, value: str, remedy: str
) -> None:
    monkeypatch.setenv(name, value)
    line = f"nnmpi.train: {name} is {value!r}: set it to {remedy}\n"
    assert command(*IRIS, "--steps", "1") == (2, "", line)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_log_that_has_a_run_is_refused_before_training(
    command: Command, more: tuple[str, ...]
) -> None:
    assert command(*IRIS, "--steps", "1", "--log", "log").status == 0
    before = Path("log").read_text()
    completed = command(*IRIS, "--steps", "1", "--log", "log", "--save", "m.safetensors", *more)
    line = (
        "nnmpi.train: cannot write log log: it has a run already; name another file, or add to "
        "this one with --append\n"
    )
    assert completed == (2, "", line)
    assert Path("log").read_text() == before
    assert command(*IRIS, "--steps", "1", "--log", "log", "--append", *more).status == 0
    assert Path("log").read_text().startswith(before)


def test_a_refused_dry_run_leaves_the_log_as_it_was(command: Command) -> None:
    before = Path("own.npz").read_bytes()
    for log, more in (("own.npz", ()), ("old.jsonl", ("--dp", "3"))):
        Path("old.jsonl").write_text("lines of a run")
        model = ("--model", "mlp:4-8-3", "--data", "own.npz")
        assert command("--dry-run", *model, "--log", log, *more).status == 2
    assert Path("own.npz").read_bytes() == before
    assert Path("old.jsonl").read_text() == "lines of a run"

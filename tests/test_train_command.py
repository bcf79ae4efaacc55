"""The command: what it refuses, what it prints, and that it is the trainer and nothing else."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import nnmpi
from nnmpi import Config, Trainer, nn, train
from nnmpi.nn.models import iris_mlp
from nnmpi.report import Report
from nnmpi.summary import summary
from nnmpi.trainer import parameters_sha256

IRIS = ("--model", "iris-mlp", "--data", "iris")
LONG = "m" * 300
MODULE = """
from nnmpi import nn
from nnmpi.nn.models import iris_mlp as make

instance = make()
number = 3

def none():
    return [1,
            2]

def wide(width):
    return nn.Linear(4, width)

def normed():
    return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
"""


class Told(NamedTuple):
    """How a command ended and what it printed."""

    status: object
    out: str
    err: str

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Command = Callable[..., Told]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs the command in a directory of its own, with what `files` puts there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    files(tmp_path)

    def run(*arguments: str) -> Told:
        try:
            status: object = train.main(arguments)
        except SystemExit as exit:
            status = exit.code
        return Told(status, *capsys.readouterr())

    yield run
    for name in ("own_package", "own_package.models"):
        sys.modules.pop(name, None)


def files(folder: Path) -> None:
    (folder / "own_package").mkdir()
    (folder / "own_package" / "__init__.py").write_text("")
    (folder / "own_package" / "models.py").write_text(MODULE)
    x, y = np.random.default_rng(0).standard_normal((40, 4)), np.arange(40) % 3
    np.savez(folder / "own.npz", x=x + y[:, None], y=y)
    np.savez(folder / "no-labels.npz", x=x)
    np.savez(folder / "words.npz", x=np.full((3, 2), "a"), y=np.arange(3))
    (folder / "broken.npz").write_bytes((folder / "own.npz").read_bytes()[:300])
    nnmpi.save(iris_mlp().state_dict(), folder / "iris.safetensors")
    whole = (folder / "iris.safetensors").read_bytes()
    (folder / "half.safetensors").write_bytes(whole[: len(whole) // 2])
    (folder / "foreign.safetensors").write_text("PK this is another kind of file")
    (folder / "broken.toml").write_text("lr = [")
    (folder / "unknown.toml").write_text("[training]\nbatchsize = 3")
    (folder / "bad.toml").write_text("epochs = 0")


WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    # arguments
    "flag": ("--frobnicate 3", ("--frobnicate",)),
    "abbreviation": ("--epoch 3", ("--epoch",)),
    "stray word": ("digits", ("digits",)),
    "no value": ("--lr", ("--lr", "expected one argument")),
    "word for a number": ("--lr fast", ("--lr", "'fast'")),
    "half an epoch": ("--epochs 1.5", ("--epochs", "'1.5'")),
    "no epochs": ("--epochs 0", ("epochs 0", "at least 1")),
    "choice": ("--optimizer lion", ("--optimizer", "'lion'", "adamw")),
    "negative rate": ("--lr=-1", ("lr -1.0", "above 0", "0.002")),
    "schedule": ("--lr-schedule step:0", ("'step:0'", "cosine")),
    # models
    "model": ("--model resnet", ("'resnet'", "digits-cnn", "package.module:function")),
    "mlp of words": ("--model mlp:4-a", ("'mlp:4-a'", "mlp:784-1024-10")),
    "mlp of no digits": ("--model mlp:²-3", ("'mlp:²-3'", "mlp:784-1024-10")),
    "mlp beyond integers": (f"--model mlp:4-{'9' * 20}-3", ("'mlp:4-9999", "below 10^9")),
    "mlp without end": (f"--model mlp:4-{'9' * 5000}-3", ("'mlp:4-9999", "below 10^9")),
    "mlp of one": ("--model mlp:4", ("two widths",)),
    "module": ("--model no_such.models:make", ("'no_such'", "PYTHONPATH")),
    "module of nothing": ("--model :make", ("':make'", "package.module:function")),
    "relative module": ("--model .models:make", ("'.models:make'", "package.module:function")),
    "function": ("--model own_package.models:mak", ("own_package.models", "'mak'")),
    "no function": ("--model own_package.models:number", ("'int' object is not callable",)),
    "instance": ("--model own_package.models:instance", ("a model itself", "function")),
    "arguments": ("--model own_package.models:wide", ("without arguments", "'width'")),
    "no module": ("--model own_package.models:none", ("no nn.Module", "[1, 2]")),
    "too large": ("--model mlp:10000000-10000000", ("out of memory", "smaller model")),
    # data
    "data": ("--data cifar", ("'cifar'", "iris", "FILE.npz")),
    "no npz": ("--data none.npz", ("none.npz is not a file",)),
    "broken npz": ("--data broken.npz", ("broken.npz",)),
    "npz without labels": ("--data no-labels.npz", ("no array y", "numpy.savez")),
    "npz of words": ("--data words.npz", ("words.npz", "real numbers")),
    "no images": ("--data mnist --data-dir .", ("train-images-idx3-ubyte", "--download")),
    "synthetic": ("--data synthetic:8", ("synthetic:8", "CxHxW")),
    # both
    "tables for a CNN": ("--data iris", ("digits-cnn and data iris do not fit", "samples are 4")),
    "images for a table": ("--model iris-mlp", ("do not fit", "1x8x8", "must be 4")),
    "width": ("--model mlp:63-10", ("do not fit", "64", "63")),
    "classes": ("--model mlp:64-9", ("(9,)", "10 classes")),
    "device": ("--device tpu", ("--device", "'tpu'", "cpu")),
    # files
    "nowhere to save": ("--save none/m.safetensors", ("cannot save", "make it first")),
    "save a directory": ("--save own_package", ("cannot save", "it is a directory")),
    "save nothing": ("--save=", ("save is empty", "leave it out")),
    "nowhere to log": ("--log none/run.jsonl", ("none/run.jsonl", "No such file", "another")),
    "log a directory": ("--log own_package", ("own_package", "directory")),
    "long data": (f"--data {LONG}.npz", (LONG,)),
    "long data directory": (f"--data mnist --data-dir {LONG}", (LONG,)),
    "long save": (f"--save {LONG}", (LONG, "name too long")),
    "long load": (f"--load {LONG}", (LONG,)),
    "long log": (f"--log {LONG}", (LONG, "name too long")),
    "config": ("--config none.toml", ("none.toml", "No such file", "name a TOML file")),
    "broken config": ("--config broken.toml", ("broken.toml is not TOML",)),
    "unknown option": ("--config unknown.toml", ("batchsize", "did you mean batch_size?")),
    "bad config": ("--config bad.toml --epochs 3", ("bad.toml", "epochs 0")),
    "load": ("--load none.safetensors", ("none.safetensors", "no such file")),
    "load half": ("--load half.safetensors", ("half.safetensors", "not a whole safetensors")),
    "load another": ("--load foreign.safetensors", ("foreign.safetensors", "not a whole")),
    "load too little": ("--load iris.safetensors", ("--load iris", "does not fit", "is missing")),
    "two lines": ("--model a\nb --save c\n/d", ("cannot save c /d",)),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_unusable_input_gives_one_line(command: Command, case: Any, more: tuple[str]) -> None:
    text, words = case
    told = command(*text.split(" "), *more)
    assert (told.status, told.out) == (2, "")
    line = told.err.removesuffix("\n")
    assert line.startswith("nnmpi.train: ")
    assert len(line.splitlines()) == 1
    assert [word for word in words if word not in line] == [], line


LOGS: dict[str, tuple[str, str]] = {
    "save": ("--log m --save m", "save"),
    "save that is there": ("--log iris.safetensors --save ./iris.safetensors", "save"),
    "save by a link": ("--log link --save iris.safetensors", "save"),
    "load": ("--log ./iris.safetensors --load iris.safetensors", "load"),
    "load by a hard link": ("--log hard --load iris.safetensors", "load"),
    "data": ("--log own.npz --data own.npz", "data"),
    "data by its form": ("--log own.npz --data npz:own.npz", "data"),
    "data at home": ("--log own.npz --data ~/own.npz", "data"),
    "config": ("--log good.toml --config ./good.toml", "config"),
    "config in itself": ("--config logs.toml", "config"),
}


@pytest.mark.parametrize("case", LOGS.values(), ids=LOGS)
def test_a_log_overwrites_no_file_of_the_run(
    command: Command, case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, option = case
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("good.toml").write_text("epochs = 1")
    Path("logs.toml").write_text('log = "logs.toml"')
    Path("link").symlink_to("iris.safetensors")
    Path("hard").hardlink_to("iris.safetensors")
    before = {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    told = command(*IRIS, *text.split())
    assert (told.status, told.out) == (2, "")
    assert f"is the file of {option} too; name another" in told.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


def test_a_log_may_be_called_what_a_data_set_is(command: Command) -> None:
    for _ in range(2):
        assert command(*IRIS, "--steps", "1", "--log", "iris").status == 0


# ---- what it prints


def test_a_line_is_an_object_and_the_log_has_the_same_lines(command: Command) -> None:
    told = command(*IRIS, "--epochs", "3", "--log", "run.jsonl")
    assert (told.status, told.err) == (0, "")
    assert Path("run.jsonl").read_text() == told.out
    assert told.out.replace("\n", "").isprintable()
    assert [e["event"] for e in told.events] == ["start", "epoch", "epoch", "epoch", "done"]
    start, *epochs, done = told.events
    assert (start["model"], start["data"], start["parameters"]) == ("iris-mlp", "iris", 403)
    assert [(e["epoch"], e["steps"]) for e in epochs] == [(1, 2), (2, 4), (3, 6)]
    assert done.keys() >= {"loss", "accuracy", "seconds", "samples_per_second"}
    assert (done["epochs"], done["steps"], done["ranks"]) == (3, 6, 1)
    assert done["layout"] == {"dp": 1, "pp": 1, "tp": 1}
    assert len(done["parameters_sha256"]) == 64
    assert all(done[key] == epochs[-1][key] for key in ("loss", "accuracy", "test_loss"))


def test_quiet_prints_the_result_alone(command: Command) -> None:
    told = command(*IRIS, "--epochs", "3", "--quiet", "--log", "run.jsonl")
    assert [e["event"] for e in told.events] == ["done"]
    assert Path("run.jsonl").read_text().endswith(told.out)
    assert len(Path("run.jsonl").read_text().splitlines()) == 5


def test_steps_end_the_run(command: Command) -> None:
    told = command(*IRIS, "--steps", "3")
    assert [e["steps"] for e in told.events] == [3, 2, 3, 3]
    assert told.events[-1]["epochs"] == 2


def test_equal_commands_give_equal_parameters(command: Command) -> None:
    def sha(*arguments: str) -> str:
        value: str = command(*IRIS, "--epochs", "1", *arguments).events[-1]["parameters_sha256"]
        return value

    assert sha() == sha("--seed", "0", "--log", "run.jsonl")
    others = ("--seed 1", "--lr 0.1", "--batch-size 10", "--optimizer sgd", "--clip-norm 0.01")
    assert len({sha(), *(sha(*other.split()) for other in others)}) == 1 + len(others)


def test_the_command_is_the_trainer(command: Command) -> None:
    Path("run.toml").write_text('model = "own_package.models:make"\n[training]\nepochs = 5\nlr=0.1')
    told = command("--config", "run.toml", "--data", "own.npz", "--epochs", "2", "--seed", "4")
    assert (told.status, told.err) == (0, "")
    own = np.load("own.npz")
    data = nnmpi.data.from_arrays(own["x"], own["y"], seed=4, name="own.npz")
    trainer = Trainer(Config(epochs=2, lr=0.1, seed=4, quiet=True), build=iris_mlp, data=data)
    result, done = trainer.fit(), told.events[-1]
    for key in ("parameters_sha256", "loss", "test_loss", "accuracy", "steps", "epochs"):
        assert result[key] == done[key], key
    assert told.events[0]["model"] == "own_package.models:make"


# ---- a dry run


def test_a_dry_run_tells_what_a_run_would_take(command: Command) -> None:
    told = command(*IRIS, "--dry-run", "--save", "m.safetensors", "--log", "run.jsonl")
    assert (told.status, told.err) == (0, "")
    assert not Path("m.safetensors").exists()
    assert Path("run.jsonl").read_text() == told.out
    (event,) = told.events
    assert event["event"] == "dry-run"
    assert event["parameters"] == 4 * 50 + 50 + 50 * 3 + 3 == 403
    assert event["parameter_bytes"] == event["gradient_bytes"] == 403 * 4
    assert 2 * 403 * 4 <= event["optimizer_bytes"] <= 2 * (403 + 4 * 16) * 4  # flat, and aligned
    assert event["data_bytes"] == 150 * (4 * 4 + 8)
    assert (event["steps"], event["steps_per_epoch"], event["epochs"]) == (20, 2, 10)
    assert "Linear(4, 50" in event["layers"]
    assert 64 * 50 * 4 < event["activation_bytes"] < 100 * 64 * 50 * 4
    other = command(*IRIS, "--dry-run", "--quiet", "--dtype=float64", "--optimizer=sgd").events[0]
    assert other["parameter_bytes"] == 403 * 8
    assert 403 * 8 <= other["optimizer_bytes"] <= (403 + 4 * 16) * 8
    assert other["activation_bytes"] > 1.5 * event["activation_bytes"]


def test_a_dry_run_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Running statistics are where they were, and training goes as without it."""
    plain, asked = (Trainer(Config(steps=3, quiet=True)) for _ in range(2))
    before = asked.model.state_dict()
    summary(asked)
    for name, array in asked.model.state_dict().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)
    assert asked.step == 0
    assert not any(p.has_grad for p in asked.model.parameters())
    assert asked.fit()["parameters_sha256"] == plain.fit()["parameters_sha256"]
    assert len(capsys.readouterr().out.splitlines()) == 2


# ---- files


def test_a_saved_model_goes_on_where_it_was(command: Command) -> None:
    """A step at a rate of 1e-30 leaves every parameter as it was loaded."""
    first = command(*IRIS, "--save", "m.safetensors").events[-1]
    again = command(*IRIS, "--load", "m.safetensors", "--lr", "1e-30", "--steps", "1").events[-1]
    for key in ("parameters_sha256", "accuracy", "test_loss"):
        assert first[key] == again[key], key
    model = nn.Sequential(nn.Linear(4, 50), nn.ReLU(), nn.Linear(50, 3))
    model.load_state_dict(nnmpi.load("m.safetensors"))
    assert parameters_sha256(model) == first["parameters_sha256"]
    over = command(*IRIS, "--load", "m.safetensors", "--save", "m.safetensors").events[-1]
    model.load_state_dict(nnmpi.load("m.safetensors"))
    assert parameters_sha256(model) == over["parameters_sha256"] != first["parameters_sha256"]


# ---- runs that fail


def test_a_run_that_outgrows_memory_gives_one_line(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(trainer: Trainer, report: Report) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(Trainer, "fit", fit)
    line = "nnmpi.train: out of memory: Unable to allocate 3 TiB; try a smaller --batch-size\n"
    assert command(*IRIS) == (1, "", line)


def test_a_step_that_fails_gives_one_line_and_saves_what_is_trained(command: Command) -> None:
    """BatchNorm has no use for the one sample in the last batch of 7 * 17 + 1."""
    normed = ("--model", "own_package.models:normed", "--data", "iris", "--save", "m.safetensors")
    told = command(*normed, "--batch-size", "17", "--log", "run.jsonl")
    assert told.status == 1
    assert len(told.err.splitlines()) == 1
    assert [e["event"] for e in told.events] == ["start", "failed"]
    assert told.err == f"nnmpi.train: {told.events[-1]['error']}\n"
    assert told.events[-1]["steps"] == 7
    assert Path("run.jsonl").read_text() == told.out
    whole = command(*normed[:-1], "w.safetensors", "--batch-size", "17", "--steps", "7")
    assert whole.status == 0
    assert Path("m.safetensors").read_bytes() == Path("w.safetensors").read_bytes()


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_a_first_step_that_fails_is_unusable_input(command: Command, more: tuple[str]) -> None:
    normed = ("--model", "own_package.models:normed", "--data", "iris", "--save", "m.safetensors")
    told = command(*normed, "--batch-size", "1", *more)
    assert (told.status, len(told.err.splitlines())) == (2, 1)
    assert not Path("m.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "step", "start"),
    [("", 2, "the loss became"), ("--steps 1", 1, "the test loss became")],
)
def test_a_loss_that_is_no_number_gives_one_line(
    command: Command, arguments: str, step: int, start: str
) -> None:
    wild = ("--lr", "1e30", "--save", "m.safetensors", "--log", "run.jsonl")
    told = command(*IRIS, *wild, *arguments.split())
    assert told.status == 1
    assert [e["event"] for e in told.events] == ["start", "failed"]
    assert told.events[-1]["steps"] == step - (start == "the loss became")
    assert told.err == f"nnmpi.train: {told.events[-1]['error']}\n"
    assert told.err.endswith("; nothing was saved\n")
    assert told.err.startswith(f"nnmpi.train: {start} ")
    assert f"at step {step} with learning rate 1e+30; try --lr 1e+29, --clip-norm" in told.err
    assert len(told.err.splitlines()) == 1
    assert not Path("m.safetensors").exists()
    assert Path("run.jsonl").read_text() == told.out

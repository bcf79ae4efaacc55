"""The command: its output, its files, and that it gives the result of a Trainer."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.commands import IRIS, Command
from helpers.runs import but_steps

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.io.output import Report
from nnmpi.io.output.messages import as_text
from nnmpi.nn.models import iris_mlp
from nnmpi.parallel.mesh import AXES

# ---- what it prints


def test_stdout_and_log_get_a_json_object_a_line(command: Command) -> None:
    completed = command(*IRIS, "--epochs", "3", "--log", "run.jsonl")
    assert (completed.status, completed.err) == (0, "")
    assert Path("run.jsonl").read_text() == completed.out
    assert completed.out.replace("\n", "").isprintable()
    told = but_steps(completed.events)
    assert [e["event"] for e in told] == ["start", "epoch", "epoch", "epoch", "done"]
    start, *epochs, done = told
    assert (start["model"], start["data"], start["parameters"]) == ("iris-mlp", "iris", 403)
    assert [(e["epoch"], e["steps"]) for e in epochs] == [(1, 2), (2, 4), (3, 6)]
    assert done.keys() >= {"loss", "accuracy", "seconds", "samples_per_second"}
    assert (done["epochs"], done["steps"], done["ranks"]) == (3, 6, 1)
    assert done["layout"] == {axis.name: 1 for axis in AXES}
    assert len(done["parameters_sha256"]) == 64
    assert all(done[key] == epochs[-1][key] for key in ("loss", "accuracy", "test_loss"))


def test_quiet_prints_only_the_result(command: Command) -> None:
    completed = command(*IRIS, "--epochs", "3", "--quiet", "--log", "run.jsonl")
    assert [e["event"] for e in completed.events] == ["done"]
    assert Path("run.jsonl").read_text().endswith(completed.out)
    told = map(json.loads, Path("run.jsonl").read_text().splitlines())
    assert len(but_steps(told)) == 5


def test_equal_commands_give_equal_parameters(command: Command) -> None:
    def sha(*arguments: str) -> str:
        value: str = command(*IRIS, "--epochs", "1", *arguments).events[-1]["parameters_sha256"]
        return value

    assert sha() == sha("--seed", "0", "--log", "run.jsonl")
    others = ("--seed 1", "--lr 0.1", "--batch-size 10", "--optimizer sgd", "--clip-norm 0.01")
    assert len({sha(), *(sha(*other.split()) for other in others)}) == 1 + len(others)


def test_the_command_gives_the_result_of_a_trainer(command: Command) -> None:
    Path("run.toml").write_text('model = "own_package.models:make"\n[training]\nepochs = 5\nlr=0.1')
    flags = ("--allow-code", "--data", "own.npz", "--epochs", "2", "--seed", "4")
    completed = command("--config", "run.toml", *flags)
    assert (completed.status, completed.err) == (0, "")
    own = np.load("own.npz")
    data = nnmpi.data.from_arrays(own["x"], own["y"], seed=4, name="own.npz")
    trainer = Trainer(Config(epochs=2, lr=0.1, seed=4, quiet=True), build=iris_mlp, data=data)
    result, done = trainer.fit(), completed.events[-1]
    for key in ("parameters_sha256", "loss", "test_loss", "accuracy", "steps", "epochs"):
        assert result[key] == done[key], key
    assert completed.events[0]["model"] == "own_package.models:make"


# ---- a dry run


def test_a_dry_run_prints_memory_and_steps(command: Command) -> None:
    completed = command(*IRIS, "--dry-run", "--save", "m.safetensors", "--log", "run.jsonl")
    assert (completed.status, completed.err) == (0, ""), completed.err
    assert not Path("m.safetensors").exists()
    assert Path("run.jsonl").read_text() == completed.out
    (event,) = completed.events
    assert event["event"] == "dry-run"
    assert event["parameters"] == 4 * 50 + 50 + 50 * 3 + 3 == 403
    (kind,) = event["kinds"]
    assert kind["parameters_bytes"] == kind["gradients_bytes"] == 403 * 4
    assert 2 * 403 * 4 <= kind["optimizer_bytes"] <= 2 * (403 + 4 * 16) * 4  # flat, and aligned
    assert event["data_bytes"] == 150 * (4 * 4 + 8)
    assert (event["steps"], event["steps_per_epoch"], event["epochs"]) == (300, 2, 150)
    assert "Linear(in_features=4, out_features=50" in event["layers"]
    assert 64 * 50 * 4 < kind["activation_bytes"] < 100 * 64 * 50 * 4
    more = "--dry-run", "--quiet", "--dtype=float64", "--optimizer=sgd"
    (other,) = command(*IRIS, *more).events[0]["kinds"]
    assert other["parameters_bytes"] == 403 * 8
    assert 403 * 8 <= other["optimizer_bytes"] <= (403 + 4 * 16) * 8
    assert other["activation_bytes"] > 1.5 * kind["activation_bytes"]


def test_a_dry_run_of_local_steps_has_the_mean_of_their_messages(command: Command) -> None:
    local = "--ranks=4", "--sync=local", "--every=30", "--allreduce=ring"
    completed = command("--model=digits-cnn", "--data=digits", *local, "--dry-run")
    assert completed.status == 0, completed.err
    (event,) = completed.events
    assert re.search(r"along dp\n +0-3 +4\.3 kB in 0\.267\n", as_text(event))


def test_a_dry_run_of_ranks_that_are_not_there(command: Command) -> None:
    completed = command(*IRIS, "--dry-run", "--ranks=6", "--dp=3", "--tp=2", "--zero=1")
    assert completed.status == 0, completed.err
    (event,) = completed.events
    assert (event["ranks"], event["layout"]) == (6, {"pp": 1, "dp": 3, "cp": 1, "tp": 2})
    assert [kind["ranks"] for kind in event["kinds"]] == [[0, 1], [2, 3], [4, 5]]


# ---- runs that fail


def test_out_of_memory_is_a_one_line_error(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(trainer: Trainer, report: Report) -> None:
        raise MemoryError("Unable to allocate 3 TiB")

    monkeypatch.setattr(Trainer, "fit", fit)
    line = "nnmpi.train: out of memory: Unable to allocate 3 TiB; try a smaller --batch-size\n"
    assert command(*IRIS) == (1, "", line)


def test_a_step_that_fails_is_a_one_line_error_and_the_model_is_saved(command: Command) -> None:
    """120 = 7 * 17 + 1 samples: the last batch has one."""
    picky = ("--model", "own_package.models:picky", "--data", "iris", "--save", "m.safetensors")
    picky = (*picky[:-2], "--lr-schedule", "constant", *picky[-2:])
    completed = command(*picky, "--batch-size", "17", "--log", "run.jsonl")
    assert completed.status == 1
    assert len(completed.err.splitlines()) == 1
    assert [e["event"] for e in but_steps(completed.events)] == ["start", "failed"]
    assert completed.err == f"nnmpi.train: {completed.events[-1]['error']}\n"
    assert completed.events[-1]["steps"] == 7
    assert Path("run.jsonl").read_text() == completed.out
    whole = command(*picky[:-1], "w.safetensors", "--batch-size", "17", "--steps", "7")
    assert whole.status == 0
    assert Path("m.safetensors").read_bytes() == Path("w.safetensors").read_bytes()


@pytest.mark.parametrize("more", [(), ("--dry-run",)], ids=["run", "dry"])
def test_a_first_step_that_fails_has_status_2(command: Command, more: tuple[str]) -> None:
    normed = ("--model", "own_package.models:normed", "--data", "iris", "--save", "m.safetensors")
    completed = command(*normed, "--batch-size", "1", *more)
    assert (completed.status, len(completed.err.splitlines())) == (2, 1)
    assert not Path("m.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "step", "start"),
    [("", 2, "the loss became"), ("--steps 1", 1, "the test loss became")],
)
def test_a_loss_that_is_not_finite_is_a_one_line_error(
    command: Command, arguments: str, step: int, start: str
) -> None:
    wild = ("--lr", "1e30", "--save", "m.safetensors", "--log", "run.jsonl")
    completed = command(*IRIS, *wild, *arguments.split())
    assert completed.status == 1
    assert [e["event"] for e in but_steps(completed.events)] == ["start", "failed"]
    assert completed.events[-1]["steps"] == step - (start == "the loss became")
    assert completed.err == f"nnmpi.train: {completed.events[-1]['error']}\n"
    assert completed.err.endswith("; nothing was saved\n")
    assert completed.err.startswith(f"nnmpi.train: {start} ")
    assert f"at step {step} with learning rate 1e+30; try --lr 1e+29, --clip-norm" in completed.err
    assert len(completed.err.splitlines()) == 1
    assert not Path("m.safetensors").exists()
    assert Path("run.jsonl").read_text() == completed.out


def test_a_loss_that_ends_far_above_where_it_began_is_a_one_line_error(command: Command) -> None:
    wild = ("--lr", "1e9", "--save", "m.safetensors", "--log", "run.jsonl")
    completed = command(*IRIS, *wild)
    assert completed.status == 1
    assert [e["event"] for e in but_steps(completed.events)][-2:] == ["epoch", "failed"]
    epoch, failed = but_steps(completed.events)[-2:]
    assert completed.err == f"nnmpi.train: {failed['error']}\n"
    assert len(completed.err.splitlines()) == 1
    assert f"{epoch['loss']:.4g} in the last epoch" in completed.err
    assert f"{epoch['test_loss']:.4g} on the test samples" in completed.err
    assert "with --lr 1e+09; try --lr 1e+08, --clip-norm 1 or" in completed.err
    assert Path("m.safetensors").exists()
    assert Path("run.jsonl").read_text() == completed.out

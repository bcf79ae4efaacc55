"""Runs that write checkpoints and are resumed: when, what they tell, and what is refused."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import turns
from helpers.datafiles import refused
from helpers.training.acts import KillsAt
from helpers.training.laws_checkpoints import Stopper, facts_of
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.addons.checkpoints.manifest import HEAD, MIDDLE, NAME, TAIL
from nnmpi.addons.checkpoints.save_times import SaveTimes
from nnmpi.comm import Comm, comm_self
from nnmpi.io.files.outputs import LogMark, opened_log
from nnmpi.io.output import Event, NullReport

COMMON: dict[str, Any] = {
    "batch_size": 24,
    "epochs": 4,
    "dtype": "float64",
    "allreduce": "ring",
    "lr_schedule": "constant",
}


def model() -> nn.Sequential:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 10)
    )


def trainer_of(comm: Comm, folder: Path, *callbacks: object, **given: Any) -> Trainer:
    config = Config(**{**COMMON, "checkpoint_dir": str(folder / "c"), **given})
    return Trainer(config, model, digits(), comm, callbacks=callbacks)


def fitted(comm: Comm, folder: Path, *callbacks: object, **given: Any) -> Event:
    with trainer_of(comm, folder, *callbacks, **given) as trainer:
        return trainer.fit()


def run(folder: Path, *callbacks: object, ranks: int = 1, **given: Any) -> Event:
    quiet = {"quiet": True, **given}
    return turns.run(ranks, lambda comm: fitted(comm, folder, *callbacks, **quiet))[0]


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints that are there."""
    return sorted(int(path.name[5:]) for path in (folder / "c").glob("step-*"))


def lines(path: Path) -> list[Event]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---- when


TIMES = {
    "steps": ("3", [3, 6, 9, 12, 15, 18, 20]),
    "epochs": ("2 epochs", [10, 20]),
    "a clock": ("999s", [3, 5, 20]),
}


@pytest.mark.parametrize(("save_every", "wanted"), TIMES.values(), ids=TIMES)
def test_checkpoints_are_written_when_they_are_due_and_at_the_end(
    save_every: str, wanted: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock of the first rank: its request rides on the sum of a step, and all ranks write
    after that one."""
    due = iter([False, True, False, True] + [False] * 99)
    if save_every == "999s":
        monkeypatch.setattr(SaveTimes, "is_due", lambda self: next(due))
    done = run(tmp_path, save_every=save_every, keep=9, ranks=2, log=str(tmp_path / "log"))
    assert steps_in(tmp_path) == wanted
    told = [e for e in lines(tmp_path / "log") if e["event"] == "checkpoint"]
    assert [event["step"] for event in told] == wanted[:-1]
    assert all(event["bytes"] > 1000 for event in told)
    assert done["checkpoints"]["written"] == len(told)
    assert 0 < done["checkpoints"]["waited"] < done["seconds"]


def test_a_clock_counts_from_the_last_checkpoint_and_ends_before_the_limit() -> None:
    clock = iter([0.0, *(9, 10, 10, 19, 20), 80, 83, 84])
    times = SaveTimes(Config(save_every="10s", time_limit="100s"), 0.0, clock.__next__)
    assert [times.is_due(), times.is_due()] == [False, True]  # at 9 and 10 s
    times.begun()
    assert [times.is_due(), times.is_due()] == [False, True]
    times.begin()
    times.written(5.0)
    assert [times.is_over(), times.is_over()] == [False, True]  # two steps of 3 s, two writes, 1 s


def test_a_device_is_waited_for_when_a_checkpoint_is_due(tmp_path: Path) -> None:
    config = Config(**COMMON, checkpoint_dir=str(tmp_path), save_every="3", evaluate_every=2)
    with Trainer(config) as trainer:
        assert {2, 3} <= {*trainer.run.read_every}


def test_a_checkpoint_of_servers_is_whole_before_the_next_epoch(tmp_path: Path) -> None:
    """They write and poll at ends of epochs only."""
    seen = list[list[int]]()

    def looks(trainer: Trainer, event: Event) -> None:
        if event["step"] == 7:
            seen.append(steps_in(tmp_path))

    run(
        tmp_path,
        SimpleNamespace(on_step=looks),
        save_every="3",
        ranks=3,
        servers=1,
        allreduce="auto",
    )
    assert seen
    assert all(steps == [5] for steps in seen)


class Breaks:
    """After the first epoch all others are worse."""

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        if event["epoch"] == 1:
            for group in trainer.optimizer.param_groups:
                group["lr"] = 2.0


def test_the_best_one_is_kept(tmp_path: Path) -> None:
    """However long ago it was."""
    run(tmp_path, Breaks(), keep_best="test_loss", keep=1, log=str(tmp_path / "log"))
    losses = [e["test_loss"] for e in lines(tmp_path / "log") if e["event"] == "epoch"]
    assert int(np.argmin(losses)) == 0
    assert steps_in(tmp_path) == [5, 20]


def test_the_best_one_is_known_after_a_loss(tmp_path: Path) -> None:
    """And after a run that was suspended at the end of its best epoch."""

    def fit(comm: Comm) -> Event:
        how = {"keep_best": "test_loss", "keep": 9, "quiet": True, "elastic": True}
        return fitted(comm, tmp_path, Breaks(), KillsAt(1, 12), **how)

    left = turns.run(2, fit, fault_tolerant=True)
    assert left[1] is None
    assert left[0]["event"] == "done"
    assert steps_in(tmp_path) == [5, 20]


def test_a_time_limit_suspends_all_ranks(tmp_path: Path) -> None:
    """At once, where it is shorter than a step."""
    result = run(tmp_path, ranks=2, time_limit="1s")
    assert (result["event"], result["steps"] < 20) == ("suspended", True)
    assert steps_in(tmp_path) == [result["steps"]]


# ---- what a run tells that was resumed


def test_a_log_goes_on_after_a_run_that_left_no_checkpoint(tmp_path: Path) -> None:
    for given in ({"checkpoint_dir": None}, {"elastic": True}):
        run(tmp_path, log=str(tmp_path / "log"), **given)
    events = [e["event"] for e in lines(tmp_path / "log")]
    assert events.count("start") == events.count("done") == 2


@pytest.mark.one_in(2)
@pytest.mark.parametrize("at", [1, 3, 5, 12])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_log_goes_on_without_a_line_twice_or_missing(tmp_path: Path, ranks: int, at: int) -> None:
    """In the middle of an epoch and of a mean over steps, and at its end; lines behind the
    checkpoint are written again."""
    whole, log = tmp_path / "whole", tmp_path / "log"
    told: dict[str, Any] = {"ranks": ranks, "log_every": 3, "evaluate_every": 2}
    run(tmp_path, log=str(whole), checkpoint_dir=None, **told)
    assert run(tmp_path, Stopper(at), log=str(log), **told)["event"] == "suspended"
    assert lines(log)[-1]["event"] == "suspended"
    with log.open("a") as file:
        file.write('{"event": "step", "step": 14}\n{"event": "ep')  # then the run was killed
    run(tmp_path, Stopper(0), log=str(log), resume=True, **told)
    kinds = [e["event"] for e in lines(log)]
    assert [kinds.count(kind) for kind in ("start", "resumed", "suspended", "done")] == [1, 1, 0, 1]
    compared = ("step", "evaluation", "epoch", "done")
    found, wanted = (
        [facts_of(e) for e in lines(path) if e["event"] in compared] for path in (log, whole)
    )
    assert found == wanted
    seconds = [e["seconds"] for e in lines(log) if e["event"] == "epoch"]
    assert seconds == sorted(seconds)
    resumed = lines(log)[kinds.index("resumed")]
    assert resumed["step"] == at
    again = f"{14 - at} steps"
    assert f"the log had reached step 14: the run repeats {again}" in resumed["notes"]


def test_a_log_of_another_run_is_not_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text('{"event": "start"}\n{"event": "done"}\n')
    mark = LogMark.of(str(log), 19)
    with log.open("a") as file:
        file.write('{"event": "start"}\n')
    with refused("it has a run already"):
        opened_log(str(log), appends=False, mark=mark)
    opened_log(str(log), appends=True, mark=mark).close()
    assert len(log.read_text().splitlines()) == 3
    log.write_text('{"event": "other"}\n{"event": "done"}\n')
    with refused("it has a run already"):
        opened_log(str(log), appends=False, mark=mark)


def test_a_run_that_is_complete_goes_on_with_more_epochs_only(tmp_path: Path) -> None:
    run(tmp_path)

    def rank(comm: Comm) -> Event:
        with trainer_of(comm, tmp_path, resume=True) as trainer:
            assert trainer.resumed.is_over
        with trainer_of(comm, tmp_path, resume=True, epochs=6) as trainer:
            return trainer.fit(NullReport())

    for done in turns.run(2, rank):
        assert (done["event"], done["steps"]) == ("done", 30)


def test_a_second_fit_is_resumed_in_its_own_span(tmp_path: Path) -> None:
    with trainer_of(comm_self(), tmp_path, Stopper(23), quiet=True) as trainer:
        trainer.fit()
        assert trainer.fit(epochs=2)["event"] == "suspended"
    with trainer_of(comm_self(), tmp_path, Stopper(0), resume=True, quiet=True) as trainer:
        assert trainer.fit()["steps"] == 30


def test_a_damaged_checkpoint_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With one line that says so, with --quiet too."""
    run(tmp_path, Stopper(12), save_every="4", ranks=2)
    newest = tmp_path / "c" / f"step-{max(steps_in(tmp_path)):08d}"
    for path in newest.glob("rank-*"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    log = tmp_path / "log"
    capsys.readouterr()
    options = {"resume": True, "log": str(log), "quiet": True}
    assert run(tmp_path, Stopper(0), ranks=2, **options)["event"] == "done"
    told, *_ = capsys.readouterr().out.splitlines()
    assert told.startswith(f"{newest.name} is passed over: rank-0000")
    first = lines(log)[0]
    assert first["step"] < int(newest.name[5:])
    assert any(f"{newest.name} is passed over" in note for note in first["notes"])


def edited(folder: Path, key: str, at: str | int, value: object) -> None:
    """Changes a value of a manifest, and its SHA-256."""
    old = (folder / NAME).read_bytes()
    content = json.loads(old)["manifest"]
    content["run"][key][at] = value
    body = json.dumps(content, separators=(",", ":")).encode()
    digest = hashlib.sha256(body).hexdigest().encode()
    (folder / NAME).write_bytes(HEAD + digest + MIDDLE + body + TAIL)


EDITED: dict[str, tuple[str, str | int, Any, str]] = {
    "a layout of other ranks": ("options", "tp", 3, "not the options of a run on 2 ranks"),
    "a batch after the epoch": ("state", 2, 10**12, "1,000,000,000,000, but an epoch has"),
    "another run": ("options", "seed", 5, "is of a run with seed 5, this one has seed 0"),
}


@pytest.mark.parametrize(("key", "at", "value", "why"), EDITED.values(), ids=EDITED)
def test_an_edited_manifest_is_passed_over(
    key: str, at: str | int, value: object, why: str, tmp_path: Path
) -> None:
    run(tmp_path, Stopper(0), save_every="2", steps=4, ranks=2)
    *_, before, newest = steps_in(tmp_path)
    edited(tmp_path / "c" / f"step-{newest:08d}", key, at, value)

    def rank(comm: Comm) -> None:
        with trainer_of(comm, tmp_path, Stopper(0), resume=True) as trainer:
            assert trainer.step == before
            (note,) = trainer.run.resumed.passed_over
            assert note.startswith(f"step-{newest:08d} is passed over: ")
            assert why in note

    turns.run(2, rank)


def test_the_newest_checkpoint_is_named_if_all_are_of_another_run(tmp_path: Path) -> None:
    run(tmp_path, save_every="2", steps=4)
    newest = max(steps_in(tmp_path))
    told = f"/step-{newest:08d} is of a run with seed 0, this one has seed 5"
    with refused(told) as caught:
        run(tmp_path, resume=True, seed=5)
    assert str(caught.value).startswith("the checkpoint ")


def test_a_user_writes_a_checkpoint_at_any_time(tmp_path: Path) -> None:
    """Beside those of the run, which has its own directory, or among them."""

    def writes(trainer: Trainer, event: Event) -> None:
        if event["step"] == 2:
            paths.extend(trainer.save_checkpoint(tmp_path / name) for name in ("c", "mine"))

    paths = list[str]()
    run(tmp_path, SimpleNamespace(on_step=writes))
    assert paths == [str(tmp_path / name / "step-00000002") for name in ("c", "mine")]

    def rank(comm: Comm) -> None:
        with Trainer(Config(**COMMON), model, digits(), comm, resume=tmp_path / "mine") as trainer:
            assert trainer.step == 2

    turns.run(2, rank)


# ---- what is refused


REFUSED: Mapping[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "seed": ({"seed": 3}, ("seed 0", "seed 3", "start a new run")),
    "batches": ({"batch_size": 12}, ("batch_size 24", "batch_size 12")),
    "optimizer": ({"optimizer": "sgd"}, ("optimizer adam", "optimizer sgd")),
    "type": ({"dtype": "float32"}, ("dtype float64", "dtype float32")),
    "samples": ({"standardise": "none"}, ("standardise auto", "standardise none")),
    "BatchNorm": ({"micro_batches": 2}, ("micro_batches 1", "micro_batches 2", "BatchNorm")),
    "no checkpoint": ({"checkpoint_dir": "none"}, ("there is no checkpoint in none",)),
    "not resumed": ({"resume": False}, ("has checkpoints already", "--resume")),
    "best": ({"keep_best": "accuracy", "loss": nn.MSELoss()}, ("keep_best accuracy", "MSELoss")),
}


OTHER_DATA: Mapping[str, tuple[Any, tuple[str, ...]]] = {
    "fewer samples": (slice(99), ("the data set", "the samples would differ")),
    "no callbacks": (slice(None), ("states of the callbacks Stopper", "this Trainer has none")),
}


@pytest.fixture(scope="module")
def suspended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The options of a run that goes on from step 7."""
    folder = tmp_path_factory.mktemp("run")
    run(folder, Stopper(7))
    return {**COMMON, "checkpoint_dir": str(folder / "c"), "resume": True}


@pytest.mark.parametrize(("given", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_go_on_is_refused(
    suspended: dict[str, Any], given: dict[str, Any], words: tuple[str, ...]
) -> None:
    loss, data = given.get("loss"), digits()
    config = {name: value for name, value in {**suspended, **given}.items() if name != "loss"}
    if loss is not None:
        y = np.zeros((100, 10)), np.zeros((31, 10))
        data = (data.train.x, y[0], data.test.x, y[1])  # type: ignore[assignment]
    with refused(*words):
        Trainer(Config(**config), model, data, comm_self(), loss=loss)


@pytest.mark.parametrize(("part", "words"), OTHER_DATA.values(), ids=OTHER_DATA)
def test_other_data_and_callbacks_are_refused(
    suspended: dict[str, Any], part: slice, words: tuple[str, ...]
) -> None:
    few = digits()
    data = (few.train.x[part], few.train.y[part], few.test.x, few.test.y)
    with refused(*words):
        Trainer(Config(**suspended), model, data, comm_self())


SMOOTHED = "CrossEntropyLoss(weight=None, ignore_index=-100, label_smoothing=0.1)"
CHANGED: Mapping[str, tuple[dict[str, Any], Any, str]] = {
    "rate": ({"lr": 0.01}, None, "lr is 0.01, and was 0.003 before"),
    "mode": (
        {"sync": "gossip", "every": 2},
        None,
        "sync is gossip, and was bsp before: the steps",
    ),
    "loss": (
        {},
        nn.CrossEntropyLoss(label_smoothing=0.1),
        f"the loss is {SMOOTHED}, and was CrossEntropyLoss(",
    ),
    "function": (
        {},
        lambda y, labels: y.mean(),
        "the loss is <lambda>, and was CrossEntropyLoss(",
    ),
}


@pytest.mark.parametrize(("options", "loss", "words"), CHANGED.values(), ids=CHANGED)
def test_another_rate_mode_or_loss_is_a_warning(
    suspended: dict[str, Any], options: dict[str, Any], loss: Any, words: str
) -> None:
    given, callbacks = {**suspended, **options}, [Stopper(0)]
    with Trainer(
        Config(**given), model, digits(), comm_self(), loss=loss, callbacks=callbacks
    ) as trainer:
        (line,) = trainer.resumed.lines
    assert line.startswith(words)

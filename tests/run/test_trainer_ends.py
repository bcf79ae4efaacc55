"""The end of a run: after its steps, by a stop, by an error; what is freed and what is saved."""

import copy
import errno
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.runs import fit, rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.addons.checkpoints import rank_file
from nnmpi.autograd.recording import recording
from nnmpi.comm import AbortedError, Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.files import atomic
from nnmpi.io.output import Event, LostOutputError, NullReport, Report
from nnmpi.parallel.strategy import AgreedError

FULL = "No space left on device"


@pytest.mark.parametrize("steps", [1, 3, 4, 5, 99])
def test_steps_are_counted_over_epochs(steps: int) -> None:
    result = fit(Trainer(Config(epochs=2, steps=steps, batch_size=14), small, rows()))
    assert (result["event"], result["steps"]) == ("done", min(steps, 8))
    assert result["epochs"] == (1 if steps <= 4 else 2)


class GoesBack:
    """A callback: after step 4, the last of an epoch, the run stops, and then goes back to step
    2."""

    snapshot: Any = None
    is_back = False

    def on_step(self, trainer: Trainer, event: dict[str, Any]) -> None:
        if event["step"] == 2 and self.snapshot is None:
            self.snapshot = trainer.snapshot()
        if event["step"] == 4:
            trainer.stop()

    def on_epoch(self, trainer: Trainer, event: dict[str, Any]) -> None:
        if trainer.stopping and not self.is_back:
            self.is_back = True
            trainer.restore(self.snapshot)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_was_stopped_ends_where_a_restore_takes_it(ranks: int) -> None:
    """It makes none of the later steps again."""

    def ends(comm: Comm) -> tuple[str, int]:
        config = Config(batch_size=14, epochs=3)
        result = fit(Trainer(config, small, rows(), comm, callbacks=[GoesBack()]))
        return result["event"], result["steps"]

    assert threads.run(ranks, ends) == [("stopped", 2)] * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_at_the_end_leaves_whole_checkpoints_only(
    ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one is being written while the model cannot be saved."""
    path, begun, replaces = str(tmp_path / "m"), threading.Event(), os.replace
    writes = rank_file.write_file

    def full(part: Any, target: Any) -> None:
        if str(target) == path:
            begun.set()
            raise OSError(errno.ENOSPC, FULL)
        replaces(part, target)

    def waits(file: Path, *rest: Any) -> Any:
        if file.parent.name == ".step-00000004.part":
            begun.wait(30)
        return writes(file, *rest)

    monkeypatch.setattr(atomic.os, "replace", full)
    monkeypatch.setattr(rank_file, "write_file", waits)

    def rank(comm: Comm) -> None:
        options = {"save": path, "checkpoint_dir": f"{tmp_path}/c", "save_every": "1"}
        about = Config(batch_size=14, epochs=1, quiet=True, **options)
        with Trainer(about, small, rows(), comm) as trainer, pytest.raises(AgreedError, match=FULL):
            trainer.fit()

    threads.run(ranks, rank)
    assert sorted(os.listdir(tmp_path / "c")) == ["step-00000003", "step-00000004"]


# ---- shared memory is freed


@pytest.mark.parametrize("options", [{"allreduce": "shared"}, {"servers": 1}, {"verify": True}])
def test_a_trainer_can_be_closed_without_a_run(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(**options), small, rows(), comm)
        before = copy.deepcopy(trainer.model.state_dict())
        trainer.close()
        trainer.close()
        for name, array in trainer.model.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
        with refused("closed", "make another"):
            trainer.fit(NullReport())

    threads.run(3, rank)


def test_an_optimizer_with_a_part_of_the_state_cannot_continue_alone() -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(steps=2, allreduce="shared"), small, rows(), comm)
        trainer.fit(NullReport())
        trainer.close()
        with refused("state for only a part of the parameters", "create another optimizer"):
            trainer.optimizer.step()

    threads.run(2, rank)
    whole = Trainer(Config(steps=2), small, rows(), comm_self())
    whole.fit(NullReport())
    whole.optimizer.step()


# ---- saving after an error


class Fails(nn.Linear):
    """Fails in its second step."""

    where = -1

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        counts = self.training and recording.get() is True  # not in set-up
        self.calls = getattr(self, "calls", 0) + int(counts)
        if self.calls == 2 and self.where == 0:
            raise RuntimeError("broken")
        return super().forward(x)


class Lost(Report):
    """Fails after an epoch."""

    def event(self, event: Event) -> None:
        if event["event"] == "epoch":
            raise LostOutputError("gone")


def fails(comm: Comm, report: Report, save: Path, **options: Any) -> None:
    """A run that fails on rank 0, which ends all ranks."""

    def build() -> nn.Module:
        model = Fails(6, 3)
        model.where = comm.rank
        return model

    broken = build if type(report) is NullReport else small
    config = Config(batch_size=14, epochs=2, save=str(save), **options)
    trainer = Trainer(config, broken, rows(), comm)
    with pytest.raises((RuntimeError, LostOutputError)):
        trainer.fit(report if comm.rank == 0 else NullReport())
    if comm.rank == 0:
        raise LostOutputError("end all ranks")


@pytest.mark.parametrize(
    ("ranks", "report", "options", "saves"),
    [
        (1, NullReport, {}, True),
        (2, NullReport, {}, False),  # within a step, which the other rank may have made
        (2, Lost, {}, True),
        (3, Lost, {"sync": "asp"}, False),  # the other worker continues
    ],
)
def test_the_model_is_saved_if_no_rank_changes_it(
    ranks: int, report: type[Report], options: Any, saves: bool, tmp_path: Path
) -> None:
    save = tmp_path / "m.safetensors"
    with pytest.raises((LostOutputError, AbortedError)):
        threads.run(ranks, lambda comm: fails(comm, report(), save, **options))
    assert save.exists() == saves


# ---- a late stop


class StopsIn(nn.Linear):
    """Stops the run when it is evaluated."""

    trainer: Trainer | None = None

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        if self.trainer is not None and not self.training:
            self.trainer.stop()
        return super().forward(x)


@pytest.mark.parametrize(
    "options", [{"allreduce": "shared"}, {"reproducible": True}, {"servers": 1}], ids=str
)
def test_a_stop_during_evaluation_stops_all_ranks(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> tuple[Any, ...]:
        config = Config(batch_size=14, **options)
        trainer = Trainer(config, lambda: StopsIn(6, 3), rows(), comm)
        if comm.rank == 1:
            trainer.model.trainer = trainer
        event = trainer.fit(NullReport())
        return event["event"], event["steps"], event["epochs"]

    assert set(threads.run(3, rank)) == {("stopped", 4, 1)}

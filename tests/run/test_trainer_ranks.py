"""A Trainer on several ranks: downloads, the end of a run, what is freed and saved."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.runs import rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.autograd.recording import recording
from nnmpi.comm import AbortedError, Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, LostOutputError, NullReport, Report

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

"""How a trainer on several ranks ends, and what is given back, saved and told then."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datafiles import refused
from runs import rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import AbortedError, Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.store import FlatStore
from nnmpi.run import saving
from nnmpi.run.dry_run import summary
from nnmpi.run.report import Event, LostOutputError, Report, Silence
from nnmpi.run.trainer import DivergedError


def kinds(trainer: Trainer) -> set[type]:
    return {type(p.store) for p in trainer.model.parameters()}


# ---- what ranks share is given back


@pytest.mark.parametrize("options", [{"allreduce": "shared"}, {"servers": 1}], ids=str)
def test_a_run_that_diverges_gives_back_what_it_shares(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> None:
        config = Config(lr=1e30, optimizer="sgd", **options)
        trainer = Trainer(config, small, rows(), comm)
        assert kinds(trainer) != {FlatStore}
        with pytest.raises(DivergedError):
            trainer.fit(Silence())
        assert kinds(trainer) == {FlatStore}

    threads.run(3, rank)


@pytest.mark.parametrize("options", [{"allreduce": "shared"}, {"servers": 1}, {"verify": True}])
def test_a_trainer_that_does_not_fit_can_be_closed(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(**options), small, rows(), comm)
        before = trainer.model.state_dict()
        trainer.close()
        trainer.close()
        assert kinds(trainer) == {FlatStore}
        for name, array in trainer.model.state_dict().items():
            np.testing.assert_array_equal(array, before[name])
        with refused("closed", "make another"):
            trainer.fit(Silence())

    threads.run(3, rank)


def test_an_optimizer_of_a_part_does_not_go_on_alone() -> None:
    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(steps=2, allreduce="shared"), small, rows(), comm)
        trainer.fit(Silence())
        with refused("running sums for a part of the parameters", "create another"):
            trainer.optimizer.step()

    threads.run(2, rank)
    whole = Trainer(Config(steps=2), small, rows(), comm_self())
    whole.fit(Silence())
    whole.optimizer.step()


# ---- who tells


def test_a_report_on_the_first_rank_is_enough() -> None:
    def rank(comm: Comm) -> Event:
        trainer = Trainer(Config(steps=2), small, rows(), comm)
        return trainer.fit(Silence()) if comm.rank == 0 else trainer.fit()

    assert {event["event"] for event in threads.run(3, rank)} == {"done"}


# ---- what is saved after an error


class Fails(nn.Linear):
    """In its second step."""

    where = -1

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        self.calls = getattr(self, "calls", 0) + self.training
        if self.calls == 2 and self.where == 0:
            raise RuntimeError("broken")
        return super().forward(x)


class Lost(Report):
    """Takes nothing after an epoch."""

    def event(self, event: Event) -> None:
        if event["event"] == "epoch":
            raise LostOutputError("gone")


def ends(comm: Comm, report: Report, save: Path, **options: Any) -> None:
    """A run that fails on rank 0, and so on all."""

    def build() -> nn.Module:
        model = Fails(6, 3)
        model.where = comm.rank
        return model

    broken = build if type(report) is Silence else small
    config = Config(batch_size=14, epochs=2, save=str(save), **options)
    trainer = Trainer(config, broken, rows(), comm)
    with pytest.raises((RuntimeError, LostOutputError)):
        trainer.fit(report if comm.rank == 0 else Silence())
    if comm.rank == 0:
        raise LostOutputError("as it was")


@pytest.mark.parametrize(
    ("ranks", "report", "options", "saves"),
    [
        (1, Silence, {}, True),
        (2, Silence, {}, False),  # in the middle of a step, which the other may have made
        (2, Lost, {}, True),
        (3, Lost, {"sync": "asp"}, False),  # the other worker goes on
    ],
)
def test_what_is_trained_is_saved_if_nobody_moves_it(
    ranks: int, report: type[Report], options: Any, saves: bool, tmp_path: Path
) -> None:
    save = tmp_path / "m.safetensors"
    with pytest.raises((LostOutputError, AbortedError)):
        threads.run(ranks, lambda comm: ends(comm, report(), save, **options))
    assert save.exists() == saves


def test_an_update_that_is_cut_in_two_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = tmp_path / "m.safetensors"
    trainer = Trainer(Config(batch_size=14, save=str(save)), small, rows(), comm_self())
    update = trainer.optimizer._update

    def torn(run: Any) -> None:
        update(run)
        if trainer.step == 2:
            raise MemoryError("no room")

    monkeypatch.setattr(trainer.optimizer, "_update", torn)
    with pytest.raises(MemoryError, match="no room"):
        trainer.fit(Silence())
    assert trainer.step == 2
    assert not save.exists()


def test_the_first_error_is_told_if_saving_fails_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise ValueError("disk full")

    monkeypatch.setattr(saving, "write", full)
    config = Config(batch_size=14, save=str(tmp_path / "m"))
    with pytest.raises(LostOutputError, match=r"\Agone") as told:
        Trainer(config, small, rows(), comm_self()).fit(Lost(quiet=True))
    assert str(told.value) == "gone"
    assert told.value.__notes__ == ["and the trained model is not saved: disk full"]


# ---- a stop that comes late


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_stop_during_an_update_is_a_stop(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the ranks have agreed on whether to go on: one rank alone knows what it wants now."""

    def rank(comm: Comm, steps: int) -> Event:
        trainer = Trainer(Config(steps=steps, batch_size=7), small, rows(), comm)
        step = trainer.optimizer.step

        def stops() -> None:
            step()
            if trainer.step == 2 and comm.rank == comm.size - 1:
                trainer.stop()

        monkeypatch.setattr(trainer.optimizer, "step", stops)
        return trainer.fit(Silence())

    for steps in (3, 7):
        ended = {(e["event"], e["steps"]) for e in threads.run(ranks, rank, steps)}
        assert ended == {("stopped", 3 if ranks == 1 else min(steps, 4))}


class StopsIn(nn.Linear):
    """Wants to stop when it is evaluated."""

    trainer: Trainer | None = None

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        if self.trainer is not None and not self.training:
            self.trainer.stop()
        return super().forward(x)


@pytest.mark.parametrize(
    "options", [{"allreduce": "shared"}, {"reproducible": True}, {"servers": 1}], ids=str
)
def test_a_stop_during_evaluation_is_heard_by_all(options: dict[str, Any]) -> None:
    def rank(comm: Comm) -> tuple[Any, ...]:
        config = Config(batch_size=14, **options)
        trainer = Trainer(config, lambda: StopsIn(6, 3), rows(), comm)
        if comm.rank == 1:
            trainer.model.trainer = trainer
        event = trainer.fit(Silence())
        return event["event"], event["steps"], event["epochs"]

    assert set(threads.run(3, rank)) == {("stopped", 4, 1)}


# ---- a dry run


PARAMETERS = 4 * (6 * 8 + 8 + 8 * 3 + 3)
CASES: list[tuple[int, dict[str, Any], float, float]] = [
    (1, {}, 1, 2),
    (3, {"allreduce": "shared"}, 4, 2),
    (3, {"allreduce": "ring"}, 3, 6),
    (1, {"reproducible": True}, 4, 2),
    (2, {"reproducible": True, "slices": 4}, 4, 4),
    (2, {"verify": True, "allreduce": "shared"}, 3 + 2, 2 + 2 * 2),
    (4, {"sync": "asp", "servers": 2}, 2 + 1, 2),
]


@pytest.mark.parametrize(("ranks", "options", "gradients", "sums"), CASES, ids=str)
def test_a_dry_run_counts_the_memory_of_a_node(
    ranks: int, options: dict[str, Any], gradients: float, sums: float
) -> None:
    def rank(comm: Comm) -> Event:
        return summary(Trainer(Config(**options), small, rows(), comm))

    for event in threads.run(ranks, rank):
        assert event["parameter_bytes"] == PARAMETERS
        assert f"({ranks})" in event["counted"]
        padding = (3 * 16 + 16 * 8) * 4  # at most: of three parameters, and of a head
        for name, copies in (("gradient", gradients), ("optimizer", sums)):
            least = copies * PARAMETERS
            assert least <= event[f"{name}_bytes"] <= least + copies * padding, name


def test_the_gradients_of_a_reproducible_run_are_those_that_it_takes() -> None:
    def rank(comm: Comm) -> tuple[int, int]:
        trainer = Trainer(Config(reproducible=True, slices=7, steps=1), small, rows(), comm)
        told = trainer.strategy.optimizer.parameters[0].store.gradient_bytes()
        return told, trainer.fit(Silence())["gradient_buffers"] * PARAMETERS

    for p in (1, 2, 3, 7):
        for told, taken in threads.run(p, rank):
            assert told == taken


def test_a_dry_run_of_shares_of_one_sample_needs_no_variance() -> None:
    """All ranks together have enough of them when they train."""

    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))

    def rank(comm: Comm) -> str:
        trainer = Trainer(Config(batch_size=14, steps=2, micro_batches=2), normed, rows(), comm)
        return str(summary(trainer)["event"])

    assert threads.run(7, rank) == ["dry-run"] * 7


def test_slices_are_for_reproducible_runs() -> None:
    with refused("slices 3 without reproducible", "add --reproducible"):
        Trainer(Config(slices=3), small, rows(), comm_self())

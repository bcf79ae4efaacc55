"""Ranks that the layout has no place for: from the start with --elastic, and after a loss."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers import turns
from helpers.training import recovered
from helpers.training.acts import KillsAt, rank_of
from helpers.training.laws_checkpoints import Stopper
from helpers.training.recovered import COMMON, RING, trainer_of

from nnmpi import Config, Trainer
from nnmpi.addons.recovery.run.recovery import NothingLeftError
from nnmpi.comm import Comm, RankLost
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.start import NotReadyError

TENSORS = {**COMMON, **RING, "dp": 2, "tp": 2}


ELASTIC = {"dp": 2, "tp": 2, "elastic": True}


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("lost", "step", "later"), [(0, 0, 80), (3, 1, 10), (0, 3, 20), (3, 5, 0), (3, 6, 150)]
)
def test_a_spare_rank_takes_the_place_of_one_that_is_lost(
    lost: int, step: int, later: int, tmp_path: Path
) -> None:
    """Before the first step, in others, and where the run ends."""
    wanted = recovered.whole("tensor parallel")[0]
    kills = [KillsAt(lost, step, later)] if step else []
    saves = {"checkpoint_dir": str(tmp_path)}
    options = {**COMMON, **RING, **ELASTIC, **saves, "callbacks": kills}
    left = recovered.run_of(5, options, {} if step else {lost: later})
    recovered.check(left[:4], wanted)
    *_, spare = left
    assert [(e["lost"], e["ranks"], e["spare"]) for e in spare.recovered] == [([lost], 4, 0)]
    assert spare.last["parameters_sha256"] == wanted.last["parameters_sha256"]


def test_a_spare_rank_knows_from_what_the_run_goes_on(tmp_path: Path) -> None:
    """It takes a place in a run that was resumed, with states of callbacks."""

    def fit(comm: Comm, stop: int, dies: bool) -> tuple[Event, Any]:
        saves = {"checkpoint_dir": str(tmp_path), "keep_best": "test_loss"}
        stopper = Stopper(stop)
        trainer = trainer_of(comm, stopper, *[KillsAt(1, 5)] * dies, **ELASTIC, **saves)
        assert trainer.fitted.startswith("dp 2 x tp 2 on 4 ranks; 1 spare rank")
        assert trainer.is_spare == (comm.rank == 4)
        done = trainer.fit(NullReport())
        return done, stopper.state_dict()

    for done, _ in turns.run(5, fit, 3, False, fault_tolerant=True):
        assert done["event"] == "suspended"
    left = turns.run(5, fit, 0, True, fault_tolerant=True)
    assert left[1] is None
    assert len({str(one[1:]) for one in left if one}) == 1
    assert {(one[0]["event"], one[0]["steps"]) for one in left if one} == {("done", 6)}


def test_spare_ranks_wait_where_no_rank_can_be_lost(tmp_path: Path) -> None:
    def fit(comm: Comm) -> tuple[bool, Event]:
        with trainer_of(comm, **ELASTIC, checkpoint_dir=str(tmp_path)) as trainer:
            return trainer.is_spare, trainer.fit(NullReport())

    found = turns.run(5, fit)
    assert [is_spare for is_spare, _ in found] == [False] * 4 + [True]
    assert all(event == found[0][1] for _, event in found)


def test_a_spare_rank_hears_that_there_is_no_run_to_make(tmp_path: Path) -> None:
    def fit(comm: Comm) -> str:
        trainer = trainer_of(comm, **ELASTIC, checkpoint_dir=str(tmp_path))
        trainer.fit(NullReport())
        for epochs in (None, 0):
            kind = AgreedError if trainer.is_spare else NotReadyError
            with pytest.raises(kind, match="the run is over" if epochs is None else "epochs 0"):
                trainer.fit(NullReport(), epochs=epochs)
        return str(trainer.fit(NullReport(), epochs=1)["event"])

    assert turns.run(5, fit) == ["done"] * 5


def test_the_run_ends_where_only_spare_ranks_are_left() -> None:
    def fit(comm: Comm) -> str:
        trainer = trainer_of(comm, KillsAt(3, 2), KillsAt(0, 4), KillsAt(1, 4), dp=2, tp=2)
        with pytest.raises(NothingLeftError) as error:
            trainer.fit(NullReport())
        return str(error.value)

    *lost, told, last = turns.run(4, fit, fault_tolerant=True)
    assert (lost, last) == ([None, None], None)
    assert "no remaining rank has a part of the model" in told


# ---- an error of a run, and a loss at the same time


class Fails:
    """A callback: the run fails on all ranks after the third step; and a rank is lost at once, or
    where the others end it."""

    def __init__(self, lost: int, dies: bool) -> None:
        self._lost, self._dies, self.calls = lost, dies, 0

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == 3:
            self.calls += 1
            if self._dies and self._lost in trainer.comm.members:
                trainer.comm.barrier()  # all have called it
                if rank_of(trainer.comm) == self._lost:
                    threads.kill(trainer.comm)
            raise AgreedError("the run has failed")


@pytest.mark.parametrize("spare", [0, 1])
def test_the_error_of_a_run_is_that_of_all_ranks_that_are_left(spare: int, tmp_path: Path) -> None:
    """Some have it before one is lost, and hear of the loss; the step is followed up again."""

    def fit(comm: Comm) -> int:
        fails = Fails(1, dies=True)
        trainer = trainer_of(comm, fails, **ELASTIC, checkpoint_dir=str(tmp_path))
        with pytest.raises(AgreedError, match="the run has failed"):
            trainer.fit(NullReport())
        return fails.calls

    first, lost, *others = turns.run(4 + spare, fit, fault_tolerant=True)
    assert (first, lost) == (2, None)
    assert others == ([2, 1] if not spare else [2, 2, 1])  # of tp 2 and dp 1, one is spare


def test_a_rank_that_is_left_alone_from_the_start_takes_another_layout() -> None:
    """It sends nothing that would tell of a loss where MPI started."""

    def fit(comm: Comm) -> str:
        if comm.rank:
            threads.kill(comm)
        with suppress(RankLost):
            while True:
                comm.barrier()
        left = comm.shrink()
        left.abandon()
        config = Config(model="iris-mlp", data="iris", pp=2, epochs=1)
        with Trainer(config, comm=left) as trainer:
            return str(trainer.fit(NullReport())["event"])

    assert turns.run(2, fit, fault_tolerant=True) == ["done", None]

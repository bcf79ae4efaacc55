"""Where ranks that are left go back to a checkpoint, where they cannot go on, and after a run."""

import json
from collections import Counter
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from helpers import turns
from helpers.runs import but_steps
from helpers.training import recovered
from helpers.training.acts import KillsAt, rank_of
from helpers.training.pipelined import digits
from helpers.training.recovered import COMMON, trainer_of

from nnmpi import Trainer
from nnmpi.addons.recovery.run.recovery import NothingLeftError
from nnmpi.comm import Comm, OtherRankError, RankLost
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.parallel.strategy import AgreedError

PIPELINE = {**COMMON, "pp": 3, "micro_batches": 3}


def killed_at_step_5(options: dict[str, Any], rank: int = 2, ranks: int = 3) -> list[str | None]:
    """What the others say then."""

    def fit(comm: Comm) -> str:
        with pytest.raises(AgreedError) as error:
            trainer_of(comm, KillsAt(rank, 5), **options).fit(NullReport())
        assert isinstance(error.value, NothingLeftError)
        return f"{error.value.checkpoint}: {error.value}"

    return turns.run(ranks, fit, fault_tolerant=True)


def test_a_run_goes_back_to_the_newest_checkpoint(tmp_path: Path) -> None:
    def directory(name: str) -> dict[str, Any]:
        return {**PIPELINE, "checkpoint_dir": str(tmp_path / name), "save_every": "2"}

    wanted = recovered.run_of(3, directory("whole"), {})[0]
    for later in (0, 50):  # after step 5, for which that of step 2 is whole
        options = {**directory(f"killed {later}"), "callbacks": [KillsAt(2, 5, later)]}
        left = recovered.run_of(3, options, {})
        recovered.check(left, wanted)
        assert left[0].recovered[0]["step"] in (0, 2, 4, 6)


def test_without_a_layout_that_fits_the_checkpoint_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no layout fits 2 ranks")

    monkeypatch.setattr("nnmpi.addons.recovery.run.reopening.fitted", refuse)
    options = {**PIPELINE, "checkpoint_dir": str(tmp_path), "save_every": "2"}
    *left, lost = killed_at_step_5(options)
    assert lost is None
    for text in left:
        assert "the others cannot continue" in text
        assert "no layout fits 2 ranks" in text
        checkpoint = f"{tmp_path}/step-00000002"
        assert text.startswith(f"{checkpoint}: ")
        assert text.endswith(f"; --resume continues from {checkpoint}")


def test_without_a_checkpoint_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    """A rank that would be spare hears of it too."""
    options = {**COMMON, "pp": 2, "tp": 2, "micro_batches": 3, "checkpoint_dir": str(tmp_path)}
    for text in filter(None, killed_at_step_5(options, 3, 4)):
        assert text.startswith("None: ")
        assert f"{recovered.NOTHING_LEFT}: no checkpoint in" in text


def test_an_error_of_the_run_ends_spare_ranks_too() -> None:
    class Fails(KillsAt):
        def on_step(self, trainer: Trainer, event: Event) -> None:
            super().on_step(trainer, event)
            if event["step"] == 5:
                raise AgreedError("the run has failed")

    def fit(comm: Comm) -> str:
        trainer = trainer_of(comm, Fails(3, 3), dp=2, tp=2)
        kind = (AgreedError, OtherRankError)
        with pytest.raises(kind, match="the run has failed"):
            trainer.fit(NullReport())
        return "spare" if trainer.is_spare else "works"

    assert turns.run(4, fit, fault_tolerant=True) == ["works", "works", "spare", None]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("what", ["evaluate", "predict", "close", "save_checkpoint", "rearrange"])
def test_outside_of_fit_a_loss_is_raised(what: str, tmp_path: Path) -> None:
    """And the next run goes on without that rank."""

    def fit(comm: Comm) -> int | str:
        trainer = trainer_of(comm)
        trainer.fit(NullReport())
        if comm.rank == 1:
            threads.kill(comm)
        calls = {
            "evaluate": trainer.evaluate,
            "predict": lambda: trainer.predict(digits().test.x),
            "close": trainer.close,
            "save_checkpoint": lambda: trainer.save_checkpoint(tmp_path),
            "rearrange": lambda: trainer.rearrange(allreduce="shared"),
        }
        with pytest.raises(RankLost):
            calls[what]()
        steps: int = trainer.fit(NullReport(), epochs=1)["steps"]
        assert trainer.comm.size == 2
        return steps

    assert turns.run(3, fit, fault_tolerant=True) == [11, None, 11]


def test_a_spare_rank_alone_goes_back_and_makes_the_epochs_that_were_asked_for(
    tmp_path: Path,
) -> None:
    """With the states of its callbacks; what was told of the first loss is not told again."""
    together = Barrier(4)

    class Counts:
        steps = 0

        def on_step(self, trainer: Trainer, event: Event) -> None:
            self.steps += 1
            is_lost = rank_of(trainer.comm) == 3 and event["step"] == 2
            are_lost = trainer.comm.size == 4 and event["step"] == 8
            if are_lost:  # none of them hears of the others before
                together.wait(60)
            if is_lost or are_lost:
                threads.kill(trainer.comm)

        def state_dict(self) -> dict[str, int]:
            return {"steps": self.steps}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.steps = state["steps"]

    def fit(comm: Comm) -> tuple[int, int]:
        saves = {"checkpoint_dir": str(tmp_path / "c"), "save_every": "2", "elastic": True}
        counts = Counts()
        trainer = trainer_of(comm, counts, dp=2, tp=2, log=str(log), quiet=True, **saves)
        return trainer.fit(epochs=2)["steps"], counts.steps

    log = tmp_path / "log"
    assert threads.run(6, fit, fault_tolerant=True) == [None] * 5 + [(10, 10)]
    events = [json.loads(line) for line in log.read_text().splitlines()]
    kinds = Counter(event["event"] for event in events)
    assert (kinds["start"], kinds["epoch"], kinds["done"]) == (1, 2, 1)
    lost = [event["lost"] for event in events if event["event"] == "recovered"]
    assert lost == [[3], [0, 1, 2, 3, 4]]


def test_a_log_of_another_run_is_not_that_of_a_run_whose_first_rank_is_lost(tmp_path: Path) -> None:
    def fit(comm: Comm, dies: bool) -> None:
        trainer = trainer_of(comm, log=str(tmp_path / "log"), append=True)
        if dies and comm.rank == 0:
            threads.kill(comm)
        trainer.fit()

    for dies in (False, True):
        turns.run(3, fit, dies, fault_tolerant=True)
    lines = map(json.loads, (tmp_path / "log").read_text().splitlines())
    events = [event["event"] for event in but_steps(lines)]
    assert sorted(events[4:]) == ["done", "epoch", "epoch", "recovered", "start"]

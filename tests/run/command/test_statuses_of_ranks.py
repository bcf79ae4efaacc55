"""Exit statuses of the ranks of one command: one rank says why, and its status is that of the job;
where ranks may be lost each of them has it.

Ranks are threads. What `train` raises ends a job, or where that is fault tolerant the rank alone.
"""

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from nnmpi import Config, Trainer, train
from nnmpi.comm import AbortedError, Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.strategy import AgreedError

IRIS: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "epochs": 3, "quiet": True}


class AfterAnEpoch:
    """A callback that does something after the second epoch."""

    def __init__(self, act: Any) -> None:
        self._act = act

    def on_epoch(self, trainer: Trainer, event: Event) -> None:
        if event["epoch"] == 2:
            self._act(trainer)


def fails_on_one_rank(trainer: Trainer) -> None:
    def fail() -> None:
        if trainer.comm.rank == 1:
            raise KeyError("of one rank")

    all_or_none(trainer.comm, fail)


def fails_alone(trainer: Trainer) -> None:
    if trainer.comm.size == 3 and trainer.comm.rank == 1:
        raise ValueError("of one rank")


def fails_on_all(trainer: Trainer) -> None:
    raise AgreedError("of all ranks")


def dies(trainer: Trainer) -> None:
    if trainer.config.checkpoint_dir:
        trainer.save_checkpoint(trainer.config.checkpoint_dir)
    if trainer.comm.rank == 2:
        threads.kill(trainer.comm)


def statuses(
    act: Any, monkeypatch: pytest.MonkeyPatch, fault_tolerant: bool = True, **options: Any
) -> list[int | str | None]:
    """What `train` returns on each of three ranks, or raises: then a rank is lost, where it can."""
    with_callback = partial(Trainer, callbacks=[AfterAnEpoch(act)])
    monkeypatch.setattr(train, "Trainer", with_callback)

    def status(comm: Comm) -> int | str:
        try:
            return train.train(Config(**IRIS, **options), comm, ())
        except Exception as error:
            if isinstance(error, ValueError):
                threads.kill(comm)
            return type(error).__name__

    return threads.run(3, status, fault_tolerant=fault_tolerant)


@pytest.mark.parametrize("fault_tolerant", [False, True])
def test_an_error_that_all_have_is_told_by_one(
    fault_tolerant: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    others = 1 if fault_tolerant else 0
    assert statuses(fails_on_all, monkeypatch, fault_tolerant) == [1, others, others]
    assert capsys.readouterr().err == "nnmpi.train: of all ranks\n"


def test_spare_ranks_have_the_status_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = {"tp": 2, "elastic": True, "checkpoint_dir": str(tmp_path)}
    assert statuses(fails_on_all, monkeypatch, **options) == [1, 1, 1]
    assert capsys.readouterr().err == "nnmpi.train: of all ranks\n"


@pytest.mark.parametrize(
    ("fault_tolerant", "others"), [(False, 0), (True, "OtherRankError")], ids=["usual", "ULFM"]
)
def test_others_raise_the_error_of_one_where_that_ends_alone(
    fault_tolerant: bool, others: int | str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the job has a status, whichever of them is the last to end."""
    found = statuses(fails_on_one_rank, monkeypatch, fault_tolerant)
    assert found == [others, "KeyError", others]


def test_others_go_on_where_one_rank_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert statuses(fails_alone, monkeypatch) == [0, None, 0]


def test_an_error_before_the_first_step_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> None:
        raise KeyError("of all ranks")

    monkeypatch.setattr(train, "Trainer", partial(Trainer, build=build))
    with pytest.raises(AbortedError, match="of all ranks"):
        threads.run(2, lambda comm: train.train(Config(**IRIS), comm, ()), fault_tolerant=True)


@pytest.mark.parametrize("saves", [True, False])
def test_without_a_layout_that_fits_a_checkpoint_is_more_to_do(
    saves: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no layout fits 2 ranks")

    monkeypatch.setattr("nnmpi.run.recovery.reopening.fitted", refuse)
    options = {"checkpoint_dir": str(tmp_path)} if saves else {}
    status = 75 if saves else 1
    assert statuses(dies, monkeypatch, **options) == [status, status, None]
    (line,) = capsys.readouterr().err.splitlines()
    rest = f"--resume continues from {tmp_path}/step-00000004" if saves else "start again"
    why = "a rank was lost, and the others cannot continue: no layout fits 2 ranks"
    assert line == f"nnmpi.train: {why}; {rest}"

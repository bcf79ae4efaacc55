"""Exit statuses of the ranks of one command where some are lost, or spare."""

from pathlib import Path

import pytest
from helpers.statuses import fails_on_all, statuses

from nnmpi import Trainer
from nnmpi.addons.recovery.run import reopening
from nnmpi.comm import thread_ranks as threads


def fails_alone(trainer: Trainer) -> None:
    if trainer.comm.size == 3 and trainer.comm.rank == 1:
        raise ValueError("of one rank")


def dies(trainer: Trainer) -> None:
    if trainer.config.checkpoint_dir:
        trainer.save_checkpoint(trainer.config.checkpoint_dir)
    if trainer.comm.rank == 2:
        threads.kill(trainer.comm)


def test_spare_ranks_have_the_status_of_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = {"tp": 2, "elastic": True, "checkpoint_dir": str(tmp_path)}
    assert statuses(fails_on_all, monkeypatch, **options) == [1, 1, 1]
    assert capsys.readouterr().err == "nnmpi.train: of all ranks\n"


def test_others_go_on_where_one_rank_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert statuses(fails_alone, monkeypatch) == [0, None, 0]


@pytest.mark.parametrize("saves", [True, False])
def test_without_a_layout_that_fits_a_checkpoint_is_more_to_do(
    saves: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("no layout fits 2 ranks")

    monkeypatch.setattr(reopening, "fitted", refuse)
    options = {"checkpoint_dir": str(tmp_path)} if saves else {}
    status = 75 if saves else 1
    assert statuses(dies, monkeypatch, **options) == [status, status, None]
    (line,) = capsys.readouterr().err.splitlines()
    rest = f"--resume continues from {tmp_path}/step-00000004" if saves else "start again"
    why = "a rank was lost, and the others cannot continue: no layout fits 2 ranks"
    assert line == f"nnmpi.train: {why}; {rest}"

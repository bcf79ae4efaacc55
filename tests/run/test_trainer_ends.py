"""The end of a run: after its steps, by a stop, by an error; and what is saved."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import fit, rows, small

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.checkpoints import rank_file
from nnmpi.io.files import atomic
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

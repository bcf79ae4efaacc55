"""Checkpoints are written and read again, on threads."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import MIDDLE, RING, run, same

from nnmpi import Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.checkpoints.read import newest
from nnmpi.run.checkpoints.write import Writer

ADAM = OPTIMIZERS[1]
ABOUT = {"rate": np.float32(0.1), "table": np.arange(5.0), "betas": (0.9, float("inf")), "n": [1]}


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (2, RING),
        (2, {"allreduce": "shared"}),
        (2, {**RING, "zero": 3, "bucket_mb": 0.001}),
        (2, {"dtype": "bfloat16", **RING, "zero": 1, "bucket_mb": 0.001}),
        (4, {"dp": 2, "tp": 2, **RING}),
    ],
    ids=str,
)
def test_a_run_goes_on_from_a_file(ranks: int, options: dict[str, Any], tmp_path: Path) -> None:
    """As it does from a snapshot in memory."""

    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            writer = Writer(tmp_path, comm)
            assert writer.start(trainer.snapshot(), ABOUT) is None
            result = writer.close()
            assert result is not None
            assert (result.step, result.problem) == (MIDDLE, "")
            found = newest(tmp_path, comm)
            assert found is not None
            assert (found.step, found.folder) == (MIDDLE, result.folder)
            about = found.about()
            assert about.pop("table").tolist() == [0, 1, 2, 3, 4]
            assert str(about) == "{'rate': np.float32(0.1), 'betas': (0.9, inf), 'n': [1]}"
            snapshot = trainer.snapshot()
            from_file = found.snapshot(comm)
            without = {"owned": (), "positions": ()}
            assert from_file._replace(**without) == snapshot._replace(**without)
            trainer.restore(from_file)

        wanted = run(comm, {**ADAM, **options})
        same(run(comm, {**ADAM, **options}, act), wanted)

    threads.run(ranks, rank)
    assert os.listdir(tmp_path) == [f"step-{MIDDLE:08d}"]

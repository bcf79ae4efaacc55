"""Checkpoints are written and read again, on threads."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import MIDDLE, RING, run, same
from helpers.training.made_checkpoints import about_of

from nnmpi import Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.checkpoints.keep import folder_of
from nnmpi.io.checkpoints.read import newest, use_newest
from nnmpi.io.checkpoints.write import Writer

ADAM = OPTIMIZERS[1]
STATE = {"rate": np.float32(0.1), "table": np.arange(5.0), "betas": (0.9, float("inf")), "n": [1]}


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (2, RING),
        (2, {"pp": 2, "cut": "5"}),
        pytest.param(2, {"allreduce": "shared"}, marks=pytest.mark.long),
        (2, {**RING, "zero": 3, "bucket_mb": 0.001}),
        (2, {"dtype": "bfloat16", **RING, "zero": 1, "bucket_mb": 0.001}),
        pytest.param(4, {"dp": 2, "tp": 2, **RING}, marks=pytest.mark.long),
    ],
    ids=str,
)
def test_a_run_goes_on_from_a_file(ranks: int, options: dict[str, Any], tmp_path: Path) -> None:
    """As it does from a snapshot in memory."""

    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            writer = Writer(tmp_path, comm)
            assert writer.start(trainer.snapshot(), about_of(trainer, STATE)) is None
            result = writer.close()
            assert result is not None
            assert (result.step, result.problem) == (MIDDLE, "")
            found = newest(tmp_path, comm)
            assert found is not None
            assert (found.step, found.folder) == (MIDDLE, result.folder)
            state = found.about().callbacks[0][1]
            assert state.pop("table").tolist() == [0, 1, 2, 3, 4]
            assert str(state) == "{'rate': np.float32(0.1), 'betas': (0.9, inf), 'n': [1]}"
            snapshot = trainer.snapshot()
            from_file = found.snapshot()
            without = {"arrays": (), "positions": (), "norms": ()}  # `about_of` has no times
            assert from_file._replace(**without) == snapshot._replace(**without)
            trainer.restore(from_file)

        wanted = run(comm, {**ADAM, **options})
        same(run(comm, {**ADAM, **options}, act), wanted)

    threads.run(ranks, rank)
    assert os.listdir(tmp_path) == [f"step-{MIDDLE:08d}"]


def test_where_a_block_is_damaged_all_ranks_go_on_from_the_one_before(tmp_path: Path) -> None:
    """One rank notices when it reads, in the midst of a restore."""
    options = {**ADAM, **RING, "zero": 1}

    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            writer, snapshot = Writer(tmp_path, comm), trainer.snapshot()
            writer.start(snapshot, about_of(trainer))
            later = snapshot.state._replace(step=MIDDLE + 1)
            writer.start(snapshot._replace(state=later), about_of(trainer))
            writer.close()
            if comm.rank == 0:
                path = folder_of(tmp_path, MIDDLE + 1) / "rank-00001.safetensors"
                content = bytearray(path.read_bytes())
                content[-1] ^= 1  # of optimizer state: all values are read before
                path.write_bytes(content)
            comm.barrier()
            found = use_newest(tmp_path, comm, lambda one: trainer.restore(one.snapshot()))
            assert found is not None
            assert found.step == MIDDLE
            (text,) = found.passed_over
            assert "rank-00001.safetensors is damaged: block 0 of 1 MB" in text

        same(run(comm, options, act), run(comm, options))

    threads.run(2, rank)

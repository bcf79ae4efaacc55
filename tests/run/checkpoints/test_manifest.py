"""Manifests with other values, and files that are no files."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.made_checkpoints import read, written

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.checkpoints.keep import folder_of
from nnmpi.run.checkpoints.located import NAME
from nnmpi.run.checkpoints.manifest import HEAD, MIDDLE, TAIL, from_bytes
from nnmpi.run.report import NullReport


class Counter:
    """A callback with a state."""

    def on_step(self, *_: object) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {"calls": 3, "sums": np.arange(3.0)}

    def load_state_dict(self, state: object) -> None: ...


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint of a run within an epoch."""
    directory = tmp_path_factory.mktemp("checkpoints")

    def rank(comm: Comm) -> str:
        options: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "pp": 2, "batch_size": 16}
        options |= {"optimizer": "adam", "dtype": "float16", "steps": 9}
        log = str(directory / "log") if comm.rank == 0 else None
        config = Config(**options, log=log, checkpoint_dir=str(directory), save_every="3", keep=1)
        trainer = Trainer(config, comm=comm, callbacks=[Counter()])
        trainer.fit(NullReport())
        return trainer.save_checkpoint(directory)

    return Path(threads.run(2, rank)[0])


def to_bytes(content: Any) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    return HEAD + hashlib.sha256(body).hexdigest().encode() + MIDDLE + body + TAIL


def test_the_all_reduce_that_was_measured_is_read(folder: Path) -> None:
    """Of --allreduce auto on nodes with a rank each: a run that is resumed takes it again."""
    content = json.loads((folder / NAME).read_bytes())["manifest"]
    content["run"]["measured"]["allreduce"] = "ring"
    assert from_bytes(to_bytes(content)).snapshot.measured["allreduce"] == "ring"


@pytest.mark.parametrize("name", [NAME, "rank-00001.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_regular_file_is_refused(name: str, kind: str, tmp_path: Path) -> None:
    """At once: a pipe would wait for who writes into it, and /dev/zero has no end."""
    threads.run(2, written, tmp_path, [1, 2])
    path = folder_of(tmp_path, 2) / name
    path.unlink()
    os.mkfifo(tmp_path / "pipe")
    path.symlink_to(tmp_path / "pipe" if kind == "pipe" else "/dev/zero")
    found, _ = threads.run(2, read, tmp_path)[0]
    assert found is not None
    assert found.step == 1
    (text,) = found.passed_over
    assert name in text
    assert "not a regular file" in text or "has 0 bytes, not" in text

"""python -m nnmpi.checkpoint: list, verify, export."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import RING, trainer_of
from helpers.training.made_checkpoints import written

import nnmpi
from nnmpi import checkpoint
from nnmpi.addons.checkpoints.keep import folder_of
from nnmpi.addons.checkpoints.schema import NAME
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {}),
        (2, {**RING, "zero": 3, "bucket_mb": 0.001}),
        pytest.param(2, {"pp": 2, "cut": "5"}, marks=pytest.mark.long),
        (4, {"dp": 2, "tp": 2, **RING, "dtype": "float16"}),
        (3, {"sync": "gossip", "every": 2}),
        (3, {"compress": "topk:0.1"}),
    ],
    ids=str,
)
def test_what_is_exported_is_what_would_be_saved(
    ranks: int, options: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names, types, numbers, metadata with the digest of parameters; and the optimizer's state."""

    def rank(comm: Comm) -> dict[str, np.ndarray]:
        trainer = trainer_of(comm, **{**OPTIMIZERS[1], **options, "steps": 2})
        trainer.fit(NullReport())
        trainer.save_checkpoint(tmp_path / "checkpoints")
        trainer.save(str(tmp_path / "saved.safetensors"))
        state = trainer.optimizer_state_dict()
        trainer.close()
        return state

    state, *_ = threads.run(ranks, rank)
    out = tmp_path / "out.safetensors"
    directory = str(tmp_path / "checkpoints")
    assert checkpoint.main(["export", directory, str(out), "--optimizer"]) == 0
    assert capsys.readouterr().out == (
        f"step 2 to {out} and {tmp_path / 'out.optimizer.safetensors'}\n"
    )
    assert out.read_bytes() == (tmp_path / "saved.safetensors").read_bytes()
    found = nnmpi.load(tmp_path / "out.optimizer.safetensors")
    assert {*found} == {*state}
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_a_list_of_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads.run(2, written, tmp_path, [3, 6, 9])
    (folder_of(tmp_path, 9) / "rank-00001.safetensors").unlink()
    assert checkpoint.main(["list", str(tmp_path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "epoch", "loss", "layout", "size", "age", "state"]
    assert [line.split()[0] for line in lines] == ["9", "6", "3"]
    assert lines[0].endswith("rank-00001.safetensors: No such file or directory")
    assert lines[1].split()[:5] == ["6", "0", "2.0000", "2", "ranks"]
    assert lines[1].endswith("whole")
    assert checkpoint.main(["list", str(tmp_path), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [one["step"] for one in values] == [9, 6, 3]
    assert values[1]["ranks"] == 2
    assert checkpoint.main(["list", str(tmp_path / "none")]) == 2
    assert "No such file or directory; name a directory that" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert checkpoint.main(["list", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out.startswith("no checkpoints in")
    assert checkpoint.main(["verify", str(tmp_path / "empty")]) == 2
    assert "there are no checkpoints in" in capsys.readouterr().err


def test_all_blocks_are_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads.run(1, written, tmp_path, [1, 2, 3])
    assert checkpoint.main(["verify", str(tmp_path)]) == 0
    assert [line.partition(", ")[0] for line in capsys.readouterr().out.splitlines()] == [
        f"step {step}: whole" for step in (3, 2, 1)
    ]
    path = folder_of(tmp_path, 2) / "rank-00000.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with path.open("ab") as file:
        file.write(b"?")
    assert checkpoint.main(["verify", str(tmp_path)]) == 1
    out = capsys.readouterr().out.splitlines()
    assert "step 2: rank-00000.safetensors is damaged: block 0 of 1 MB" in out[1]
    assert checkpoint.main(["verify", str(tmp_path), "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["problem"] == ""
    assert checkpoint.main(["verify", str(tmp_path), "7"]) == 2
    assert "there is no step-00000007 in" in capsys.readouterr().err


def test_what_cannot_be_exported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads.run(1, written, tmp_path, [1, 2])
    (folder_of(tmp_path, 2) / NAME).unlink()
    out = str(tmp_path / "out.safetensors")
    gone = "manifest.json: No such file or directory; choose another step with --step"
    for arguments, reason in {
        (str(tmp_path), out, "--step", "2"): gone,
        (str(tmp_path), out, "--step", "3"): "the steps there are 2, 1",
    }.items():
        assert checkpoint.main(["export", *arguments]) == 2
        assert reason in capsys.readouterr().err
    assert not os.path.exists(out)

"""python -m nnmpi.checkpoint export: the folder of a GPT."""

import errno
import os
from pathlib import Path

import pytest
from helpers.datafiles import refused
from helpers.training import laws_gpt2
from helpers.training.laws_language import tokens
from safetensors.numpy import load_file

from nnmpi import Config, Trainer, checkpoint
from nnmpi.addons.language.models.gpt2 import save_gpt2
from nnmpi.comm import comm_self
from nnmpi.io.output import NullReport


def test_a_gpt_is_exported_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    save_gpt2(laws_gpt2.model(), tmp_path / "start")
    config = Config(load=str(tmp_path / "start"), steps=1, batch_size=9)
    trainer = Trainer(config, data=tokens(), comm=comm_self())
    trainer.fit(NullReport())
    trainer.save_checkpoint(tmp_path / "checkpoints")
    trainer.save(f"{tmp_path}/saved/")
    assert checkpoint.main(["export", f"{tmp_path}/checkpoints", f"{tmp_path}/out/"]) == 0
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "saved" / name).read_bytes()
    assert "lm_head.weight" not in load_file(tmp_path / "out/model.safetensors")
    before = sorted(tmp_path.rglob("*"))
    with monkeypatch.context() as patch:  # a full disk leaves nothing of a new folder or file
        patch.setattr(os, "fsync", full)
        for out in (f"{tmp_path}/other/", f"{tmp_path}/other.safetensors"):
            assert checkpoint.main(["export", f"{tmp_path}/checkpoints", out, "--optimizer"]) == 2
            assert "No space left on device" in capsys.readouterr().err
        with refused("No space left on device"):
            trainer.save(f"{tmp_path}/other/")
    assert sorted(tmp_path.rglob("*")) == before


def full(file: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")

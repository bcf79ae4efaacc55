"""Ranks that start from different options, data or models are an error before they train."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mpijob import run
from helpers.runs import rows, small

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm, OtherRankError
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.models import mlp
from nnmpi.run import rank_agreement


def changed(part: int, index: tuple[int, ...], n: int = 70) -> tuple[np.ndarray, ...]:
    """The data with one changed number."""
    arrays = [a[:n].copy() for a in (*rows(), *rows())]
    arrays[part][index] += 1
    return tuple(arrays)


def shifted() -> nn.Module:
    model = small()
    model[1].bias.data[2] += 1e-3
    return model


def with_tanh() -> nn.Module:
    model = small()
    return nn.Sequential(*(nn.Tanh() if isinstance(m, nn.ReLU) else m for m in model))


class Tracking(nn.Module):
    def __init__(self, start: float) -> None:
        self.net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        self.net[1].running_mean += start

    def forward(self, x: Any) -> Any:
        return self.net(x)


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"options": {"lr": 0.25}}, "lr (0.25); start all ranks with the same options"),
    "dry run": ({"options": {"dry_run": True}}, "dry_run (True)"),
    "length": ({"data": (*rows(63), *rows())}, "the number of training samples (63); give all"),
    "label": ({"data": changed(1, (0,))}, "the labels of the training samples; give all"),
    "sample": ({"data": changed(0, (5, 2))}, "the training samples"),
    "parameters": ({"build": shifted}, "the initial values of 1.bias; initialise all ranks"),
    "layers": ({"build": lambda: mlp(6, 9, 3)}, "the names and shapes of parameters and buffers"),
    "computation": ({"build": with_tanh}, "what the model computes, layer by layer; build the"),
    "buffers": ({"build": lambda: Tracking(1)}, "the initial values of net.1.running_mean"),
}


def made_by(comm: Comm, name: str) -> Trainer:
    """A Trainer, with other arguments on rank 1."""
    other, _ = CASES[name]
    mine = other if comm.rank == 1 else {}
    build = (lambda: Tracking(0)) if name == "buffers" else small
    make = mine.get("build", build)

    def model() -> nn.Module:
        made: nn.Module = make()
        return made

    config = Config(**mine.get("options", {}))
    return Trainer(config, model, mine.get("data", (*rows(), *rows())), comm)


@pytest.mark.parametrize("name", CASES)
def test_the_error_names_what_differs(name: str) -> None:
    def rank(comm: Comm) -> type[BaseException]:
        with pytest.raises((ValueError, OtherRankError)) as caught:
            made_by(comm, name)
        assert f"rank 1 differs from rank 0 in {words}" in str(caught.value)
        return caught.type

    words = CASES[name][1]
    assert threads.run(3, rank) == [OtherRankError, ValueError, OtherRankError]


def test_a_value_that_one_rank_lacks_is_not_given() -> None:
    def rank(comm: Comm) -> str:
        with pytest.raises((ValueError, OtherRankError)) as caught:
            rank_agreement.check_given(comm, {"dp": None if comm.rank else 2})
        return str(caught.value)

    assert all(
        "rank 1 differs from rank 0 in dp (not given)" in text for text in threads.run(2, rank)
    )


def test_stages_are_compared_with_their_replicas() -> None:
    """Ranks 2 and 3 hold the second stage."""

    def rank(comm: Comm) -> str:
        def build() -> nn.Module:
            model = small()
            model[3].bias.data[2] += 1e-3 * (comm.rank == 3)
            return model

        with pytest.raises((ValueError, OtherRankError)) as caught:
            Trainer(Config(dp=2, pp=2), build, rows(), comm)
        return str(caught.value)

    for said in threads.run(4, rank):
        assert "rank 3 differs from rank 2 in the initial values of 3.bias" in said


# ---- files


COMMAND = """
import os, sys
from nnmpi import train
from nnmpi.comm import world
os.chdir(os.path.join(sys.argv[1], str(world().rank)))
arguments = ["--load", "m.safetensors", "--tp", "2", "--model", "mlp:64-8-10"]
print(train.main([*arguments, "--data", "digits"]), flush=True)
"""


def test_a_command_compares_what_ranks_read(tmp_path: Path) -> None:
    """Each in a directory of its own, with another file of the same name and size."""
    for rank in (0, 1):
        (tmp_path / str(rank)).mkdir()
        model = mlp(64, 8, 10)
        model[1].bias.data[...] += rank
        nnmpi.save(model.state_dict(), tmp_path / str(rank) / "m.safetensors")
    found = run(2, "-c", COMMAND, tmp_path, timeout=100)
    assert sorted(found.out.splitlines()) == ["0", "2"], found.err
    said = "rank 1 differs from rank 0 in --load m.safetensors; let all ranks read"
    assert said in found.err

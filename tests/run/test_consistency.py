"""Ranks that start from different options, data or models are an error before they train."""

from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.runs import rows, small
from helpers.training.laws_goals import NEXT, WORDS, X, of_several

from nnmpi import Config, Trainer, nn, optim
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


def frozen() -> nn.Module:
    model = small()
    model[1].weight.requires_grad = False
    return model


def of_inputs(x: Any) -> dict[str, Any]:
    """Arguments of a Trainer of a model of several inputs."""
    y = NEXT[:, 0] % 4
    return {"build": partial(of_several, 4), "data": (x, y, x, y)}


SEVERAL = of_inputs({"words": WORDS, "table": X})
TRAINING = "the training"
BY_SGD = {"optimizer": lambda named: optim.SGD([p for _, p in named])}
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"options": {"lr": 0.25}}, "lr (0.25); start all ranks with the same options"),
    "dry run": ({"options": {"dry_run": True}}, "dry_run (True)"),
    "optimizer": (BY_SGD, "the options that are functions"),
    "schedule": ({"schedule": lambda step: 0.5}, "the options that are functions"),
    "length": ({"data": (*rows(63), *rows())}, "the number of training samples (63); give all"),
    "label": ({"data": changed(1, (0,))}, "the labels of the training samples; give all"),
    "sample": ({"data": changed(0, (5, 2))}, "the training samples"),
    "parameters": ({"build": shifted}, "the initial values of 1.bias; initialise all ranks"),
    "frozen": ({"build": frozen}, "which parameters have requires_grad"),
    "layers": ({"build": lambda: mlp(6, 9, 3)}, "the names and shapes of parameters and buffers"),
    "computation": ({"build": with_tanh}, "what the model computes, layer by layer; build the"),
    "buffers": ({"build": lambda: Tracking(1)}, "the initial values of net.1.running_mean"),
    "input: number": (of_inputs({"words": WORDS, "table": X + np.eye(*X.shape)}), TRAINING),
    "input: name": (of_inputs({"words": WORDS, "tables": X}), TRAINING),
    "input: one more": (of_inputs({"words": WORDS, "table": X, "scale": X[:, 0]}), TRAINING),
    "input: type": (of_inputs((WORDS, X)), TRAINING),
}


def made_by(comm: Comm, name: str) -> Trainer:
    """A Trainer, with other arguments on rank 1."""
    given: dict[str, Any] = {"options": {}, "build": small, "data": (*rows(), *rows())}
    given |= {"build": lambda: Tracking(0)} if name == "buffers" else {}
    given |= SEVERAL if name.startswith("input") else {}
    given |= CASES[name][0] if comm.rank == 1 else {}
    make = given.pop("build")

    def model() -> nn.Module:
        made: nn.Module = make()
        return made

    return Trainer(Config(**given.pop("options")), model, given.pop("data"), comm, **given)


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

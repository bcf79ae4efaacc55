"""A model whose `forward` opens autocast, in a Trainer."""

from functools import partial
from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.amp import autocast
from nnmpi.comm import Comm, thread_ranks

X = np.random.default_rng(0).standard_normal((32, 12)).astype("float32")
Y = np.random.default_rng(1).integers(0, 3, 32)


class Narrow(nn.Module):
    """Two layers in bfloat16, with scores in float32."""

    def __init__(self, width: int) -> None:
        self.a, self.b = nn.Linear(width, 24), nn.Linear(24, 3)

    def forward(self, x: Any) -> Any:
        with autocast("cpu", dtype="bfloat16"):
            y = self.b(nnmpi.relu(self.a(x)))
        assert y.dtype == "bfloat16"
        return y.float()


class Decorated(Narrow):
    """The same, by the decorator."""

    @autocast("cpu")
    def forward(self, x: Any) -> Any:
        return self.b(nnmpi.relu(self.a(x))).float()


class Nested(nn.Module):
    """A layer in float32 before the two."""

    def __init__(self) -> None:
        self.first, self.rest = nn.Linear(12, 16), Narrow(16)

    def forward(self, x: Any) -> Any:
        return self.rest(nnmpi.relu(self.first(x)))


class Wide(Narrow):
    """The two layers in float32."""

    def forward(self, x: Any) -> Any:
        return self.b(nnmpi.relu(self.a(x)))


BUILDS = {"narrow": partial(Narrow, 12), "decorated": partial(Decorated, 12), "nested": Nested}


def trained(build: Any, ranks: int = 1, **options: Any) -> tuple[float, str]:
    """The last loss of some steps, and a digest of the parameters after them."""

    def train(comm: Comm) -> Any:
        given = {"steps": 6, "batch_size": 16, "lr": 0.05, "quiet": True, **options}
        with nnmpi.Trainer(nnmpi.Config(**given), build=build, data=(X, Y), comm=comm) as trainer:
            return trainer.fit()

    event = thread_ranks.run(ranks, train)[0]
    return event["loss"], event["parameters_sha256"]


@pytest.mark.parametrize("name", BUILDS)
def test_recorded_passes_have_the_same_bits(name: str) -> None:
    recorded = trained(BUILDS[name])
    assert recorded == trained(BUILDS[name], compile=False)
    assert recorded[1] != trained(partial(Wide, 12))[1]


def test_the_decorator_gives_the_same_bits() -> None:
    assert trained(BUILDS["narrow"]) == trained(BUILDS["decorated"])


@pytest.mark.parametrize("options", [{}, {"zero": 3}, {"zero": 1, "allreduce": "ring"}])
def test_two_ranks_train_as_one_does(options: dict[str, Any]) -> None:
    loss, _ = trained(BUILDS["narrow"], 2, **options)
    assert loss == pytest.approx(trained(BUILDS["narrow"])[0], rel=1e-2)


def test_a_module_with_autocast_is_one_layer_of_a_pipeline() -> None:
    options = {"pp": 2, "micro_batches": 2}
    loss, _ = trained(Nested, 2, **options)
    assert loss == pytest.approx(trained(Nested)[0], rel=1e-2)
    with pytest.raises(ValueError, match="its forward uses autocast, so it is one layer"):
        trained(BUILDS["narrow"], 2, **options)


def test_passes_that_run_again_have_the_same_bits() -> None:
    options = {"micro_batches": 2}
    assert trained(Nested, recompute="stage", **options) == trained(Nested, **options)

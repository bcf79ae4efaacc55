"""What a graph cannot show: the module with that `forward` is taken whole, and a note says why."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

import nnmpi
from nnmpi import Config, Tensor, nn
from nnmpi.comm import Comm, thread_ranks
from nnmpi.nn import graph_recorder as recorder
from nnmpi.nn.graph import Graph
from nnmpi.nn.tracing import trace
from nnmpi.run.trainer import Trainer

Between: TypeAlias = Callable[[Any, Tensor], Tensor]


class Two(nn.Module):
    """Two layers, and something between them."""

    def __init__(self, between: Between) -> None:
        self.first, self.last, self.between = nn.Linear(3, 3), nn.Linear(3, 3), between
        self.scale = nn.Parameter(np.ones(3))
        self.scale.requires_grad = False
        self.norm = nn.BatchNorm1d(3)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(self, self.first(x)))
        return y


def traced(model: nn.Module) -> Graph:
    return trace(model, lambda n: ((nnmpi.tensor(np.zeros((n, 3))),), {}), "float64")


def writes(model: Two, y: Tensor) -> Tensor:
    mask = (y > 0).astype("float64")
    mask[:, :2] = 0.0
    return y * mask


def adds_in_place(model: Two, y: Tensor) -> Tensor:
    mask = (y > 0).astype("float64")
    mask += 1
    return y * mask


def writes_to_a_parameter(model: Two, y: Tensor) -> Tensor:
    model.scale[:2] = 0.0
    return y * model.scale


def writes_to_a_buffer_of_a_layer(model: Two, y: Tensor) -> Tensor:
    model.norm.running_mean[0] = 1.0
    return y


def reads_without_gradients(model: Two, y: Tensor) -> Tensor:
    with nnmpi.no_grad():
        is_large = float(abs(y).max()) > 1
    return y * 2 if is_large else y


def runs_without_gradients(model: Two, y: Tensor) -> Tensor:
    with nnmpi.no_grad():
        z: Tensor = model.last(y)
    return y * z


def detaches(model: Two, y: Tensor) -> Tensor:
    return y * y.detach()


def reads_detached(model: Two, y: Tensor) -> Tensor:
    return y * 2 if y.detach().numpy().any() else y


def counts(model: Two, y: Tensor) -> Tensor:
    model.calls += 1
    return y if model.calls <= 3 else y * 2


NOTES: dict[Between, str] = {
    writes: recorder.WRITES,
    adds_in_place: recorder.WRITES,
    writes_to_a_parameter: recorder.WRITES,
    writes_to_a_buffer_of_a_layer: recorder.WRITES,
    reads_without_gradients: recorder.USES + "no_grad",
    runs_without_gradients: recorder.USES + "no_grad",
    detaches: recorder.DETACHES,
    reads_detached: recorder.DETACHES,
    counts: recorder.CHANGES,
}


@pytest.mark.parametrize("between", NOTES)
def test_a_module_is_taken_whole(between: Between) -> None:
    """It alone: what is around it is looked into."""
    graph = traced(nn.Sequential(nn.Linear(3, 3), Two(between)))
    assert [node.name for node in graph.nodes] == ["0", "1"]
    assert graph.notes == (f"1: {NOTES[between]}",)


def times(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: forward(x) * 2


def model_of_blocks() -> nn.Module:
    own = nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    for module in own:
        object.__setattr__(module, "forward", times(module.forward))
    blocks = (Two(between) for between in (writes, runs_without_gradients, detaches, counts))
    return nn.Sequential(*own, *blocks, nn.Linear(3, 2))


@pytest.mark.parametrize("layout", [{"pp": 2}, {"tp": 2}])
def test_what_is_taken_whole_trains_as_on_one_rank(layout: dict[str, int]) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((24, 3)), rng.integers(0, 2, 24)

    def train(comm: Comm, layout: dict[str, int]) -> tuple[float, float]:
        config = Config(batch_size=8, steps=6, dtype="float64", quiet=True, **layout)  # type: ignore[arg-type]
        result = Trainer(config, model_of_blocks, (x, y, x, y), comm).fit()
        return result["loss"], result["test_loss"]

    (one,) = thread_ranks.run(1, train, {})
    for found in thread_ranks.run(2, train, layout):
        assert np.allclose(found, one, rtol=1e-12)


def test_an_argument_that_is_not_a_number() -> None:
    graph = traced(Two(lambda model, y: nnmpi.where(y > 1e9, float("nan"), y)))
    assert graph.notes == ()

"""The profile of units: what it measures, and that it leaves the model as it was."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device
from helpers.traced import traced

import nnmpi
from nnmpi import nn
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.nn.models import MODELS, mlp
from nnmpi.nn.seeding import seed_state, seeded
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.unit_costs import Timing, UnitCost, profile

N = 6


class Block(nn.Module):
    """A custom block with a buffer that its forward writes to."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(5, 5), nn.LayerNorm(5)
        self.register_buffer("seen", np.zeros((), np.float32))

    seen: np.ndarray

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        self.seen += 1
        return x + self.b(self.a(x))


def nested() -> nn.Sequential:
    block = nn.Sequential(nn.Linear(5, 5, bias=False), nn.BatchNorm1d(5), nn.Dropout(0.5))
    return nn.Sequential(nn.Flatten(), block, nn.Sequential(Block(), nn.Tanh(), Block()))


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 5))
    model[3].weight = model[0].weight
    return model


MADE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(12, 9, 9, 4), (3, 4)),
    "digits-cnn": (MODELS["digits-cnn"], (1, 8, 8)),
    "mnist-cnn": (MODELS["mnist-cnn"], (1, 28, 28)),
    "nested": (nested, (5,)),
    "tied": (tied, (5,)),
}


def fresh(name: str) -> nn.Module:
    with seeded(3):
        return MADE[name][0]()


def batch(name: str, dtype: str = "float32") -> np.ndarray:
    shape = (N, *MADE[name][1])
    return np.random.default_rng(0).standard_normal(shape).astype(dtype)


def profiled(model: nn.Module, x: np.ndarray, on: Backend, repeats: int = 5) -> list[UnitCost]:
    graph = traced(model, *x.shape[1:], given=x.dtype.name, dtype=x.dtype.name)
    return profile(model, graph, units(graph), x, on, Timing(repeats))


def kept(model: nn.Module) -> list[Any]:
    """All that a profile might change."""
    parts = [(m.training, m.passes) for m in model.modules()]
    return [*parts, *((p.store, p.seed, p.has_grad) for p in model.parameters())]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MADE)
def test_a_profile_changes_nothing(name: str, dtype: str) -> None:
    model, before = fresh(name), seed_state.get()
    state, buffers = kept(model), [t.array for t in model.buffers()]
    costs = profiled(model, batch(name, dtype), CPU, repeats=1)
    assert len(costs) == len(units(traced(model, *MADE[name][1], given=dtype, dtype=dtype)))
    assert kept(model) == state
    assert not any(p.is_drawn for p in model.parameters())
    assert all(a is t.array for a, t in zip(buffers, model.buffers(), strict=True))
    assert seed_state.get() == before
    expected = fresh(name).state_dict()
    for path, value in model.state_dict().items():
        np.testing.assert_array_equal(value, expected[path])
        assert value.dtype == expected[path].dtype


def test_what_does_not_fit_is_refused_and_nothing_is_left() -> None:
    class Cut(nn.Module):
        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            return x.detach()

    x = np.ones((N, 4), np.float32)
    for layer, words in (
        (nn.Linear(3, 2), ("input of shape (2, 4)", "weight of shape (2, 3)")),
        (Cut(), ("layer 1 (Cut): no gradient flows", "detach()")),
    ):
        model = nn.Sequential(nn.Linear(4, 4), layer)
        with refused(*words):
            profiled(model, x, CPU)
        assert not any(p.is_drawn for p in model.parameters())


@needs_device
def test_a_profile_on_a_device() -> None:
    model = fresh("digits-cnn")
    costs = profiled(model, batch("digits-cnn"), DEVICE)
    assert all(c.forward > 0 for c in costs)
    assert not any(p.is_drawn for p in model.parameters())
    assert all(isinstance(t.array, np.ndarray) for t in model.buffers())

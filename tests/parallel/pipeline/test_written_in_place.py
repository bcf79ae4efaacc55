"""Models whose `forward` writes to results in place train on the stages of a pipeline as on one
rank, where other names of a tensor see the write."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn
from nnmpi.comm import Comm, thread_ranks

RNG = np.random.default_rng(0)
OPTIONS: dict[str, Any] = {"dtype": "float64", "batch_size": 20, "steps": 3, "lr": 0.1}
OPTIONS |= {"optimizer": "sgd", "quiet": True}
X, Y = RNG.standard_normal((40, 6)), RNG.integers(0, 3, 40)


class Written(nn.Module):
    """Two layers, and between them what a function does with the first one's result."""

    def __init__(self, write: Callable[[Any], Any], between: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.first, self.between, self.last = nn.Linear(6, 8), between(), nn.Linear(8, 3)
        self.write = write

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        other_name = h
        y = self.between(self.write(h))
        return self.last(other_name + y)


class WritesToItsArgument(nn.Module):
    """Has a layer or a buffer, by which it is recorded in parts or as one unit."""

    def __init__(self, has_buffer: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        if has_buffer:
            self.register_buffer("factor", np.array(2.0))

    def forward(self, x: Any) -> Any:
        x *= 2.0
        return self.layer(x).tanh()


def added(h: Any) -> Any:
    h += 1.0
    return h


def used_then_added(h: Any) -> Any:
    y = h.tanh()
    h += y
    return y


WRITES: dict[str, Callable[[Any], Any]] = {
    "+=": added,
    "+= of a result": used_then_added,
    "relu_": lambda h: h.relu_(),
    "inplace=True": lambda h: F.relu(h, inplace=True),
    "nothing": lambda h: h,
}
BETWEEN: dict[str, Callable[[], nn.Module]] = {
    "a layer": nn.Tanh,
    "a module that writes to its argument": lambda: WritesToItsArgument(has_buffer=False),
    "a unit that writes to its argument": lambda: WritesToItsArgument(has_buffer=True),
}


def losses(ranks: int, build: Callable[[], nn.Module], **layout: int) -> list[float]:
    """The mean loss of three steps, and that of the test samples after them."""
    found: list[float] = []
    config = nnmpi.Config(**OPTIONS, **layout)

    def train(comm: Comm) -> None:
        with nnmpi.Trainer(config, build, data=(X, Y), comm=comm) as trainer:
            last = trainer.fit()
            if comm.rank == 0:
                found.extend((last["loss"], last["test_loss"]))

    thread_ranks.run(ranks, train)
    return found


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("write", WRITES)
def test_two_stages_train_as_one_rank(write: str, between: str) -> None:
    def build() -> nn.Module:
        written = Written(WRITES[write], BETWEEN[between])
        return nn.Sequential(nn.Linear(6, 6), nn.Tanh(), written)

    two = losses(2, build, pp=2, micro_batches=2)
    assert losses(1, build) == pytest.approx(two, rel=1e-12)


def in_zeros(h: Any) -> Any:
    o = nnmpi.zeros(*h.shape, dtype="float64")
    o[:, 2:5] = h[:, :3]
    return o


def in_view_of_zeros(h: Any) -> Any:
    o = nnmpi.zeros(*h.shape, dtype="float64")
    part = o[:, 2:5]
    part += h[:, :3]
    return o


def at_positive(h: Any) -> Any:
    o = nnmpi.ones(*h.shape, dtype="float64")
    with nnmpi.no_grad():
        o[h > 0] = 0.0
    return o * h


NEW: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "o[...] = h": (in_zeros, lambda h: F.pad(h[:, :3], (2, 3))),
    "a view of o += h": (in_view_of_zeros, lambda h: F.pad(h[:, :3], (2, 3))),
    "o += h": (lambda h: nnmpi.zeros(*h.shape, dtype="float64").add_(h), lambda h: h + 0.0),
    "o.copy_(h)": (lambda h: nnmpi.zeros(*h.shape, dtype="float64").copy_(h), lambda h: h + 0.0),
    "o[h > 0] = 0": (at_positive, lambda h: nnmpi.where(h > 0, 0.0, h)),
    "o[...] = h without gradients": (
        lambda h: h + in_zeros(h.detach()),
        lambda h: h + F.pad(h.detach()[:, :3], (2, 3)),
    ),
}
"""Models that write their values into a new tensor, and others that compute the same."""


@pytest.mark.parametrize("name", NEW)
def test_new_tensors_take_values_of_the_model(name: str) -> None:
    written, computed = (partial(Written, write, nn.Tanh) for write in NEW[name])
    one = losses(1, lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), computed()))
    for pp in (1, 2):
        found = losses(pp, lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), written()), pp=pp)
        assert found == pytest.approx(one, rel=1e-12)

"""Laws of sharded models that are no chains, on any Comm: they train as on one rank."""

from collections.abc import Callable

import numpy as np
from helpers.training import pipelined
from helpers.training.graph_models import GRAPH_MODELS

import nnmpi
from nnmpi import nn
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.parallel.tensor import Way
from nnmpi.parallel.tensor.sharding import Sharding


class Tied(nn.Module):
    """Two layers with one weight, and one that runs twice."""

    def __init__(self) -> None:
        self.a, self.b, self.twice = (nn.Linear(8, 8) for _ in range(3))
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.twice(nnmpi.tanh(self.twice(self.b(nnmpi.relu(self.a(x))))))
        return y


class TiedToAnOp(nn.Module):
    """The weight of a layer, which an op between layers uses too."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(8, 6, bias=False), nn.Linear(6, 8)
        self.scale = nn.Parameter(np.ones((), np.float32))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(nnmpi.relu(self.a(x)) * self.scale)
        return y + self.a(y) @ self.a.weight


class Measured(nn.Module):
    """It reads the width of what a layer returned."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x)
        out: Tensor = self.b(nnmpi.relu(y * y.shape[-1] ** -0.5))
        return out


class Shared(nn.Module):
    """Dropout, BatchNorm and an activation, each in two places."""

    def __init__(self) -> None:
        self.layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.norm, self.drop = nn.BatchNorm1d(8), nn.Dropout(0.3)
        self.again, self.relu = self.norm, nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, (self.norm, self.again, nn.Identity()), strict=True):
            x = norm(self.drop(self.relu(layer(x))))
        return x


class Scale(nn.Module):
    """Each feature times a factor of its own."""

    sharding = (Way(-1, -1, {"factor": 0}),)

    def __init__(self, width: int) -> None:
        self.factor = nn.Parameter(np.linspace(0.5, 1.5, width, dtype=np.float32))
        self.way, self.spec, self.comm = 1, 1, 1  # names that rewriting has use for

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor * (self.way * self.spec * self.comm)


class Outputs(nn.Module):
    """A product of which a rank has some outputs, or some inputs."""

    sharding = (Way(None, -1, {"w": 1}), Way(-1, None, {"w": 0}))

    def __init__(self, inputs: int, outputs: int) -> None:
        self.w = nn.Parameter(np.cos(np.arange(inputs * outputs)).reshape(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


class Terms(nn.Module):
    """A mean of the functions that a table has, of which a rank has some."""

    sharding = (Way(parameters={"shifts": 0}),)

    def __init__(self, functions: int) -> None:
        self.shifts = nn.Parameter(np.arange(functions) / functions)
        self.functions = functions

    def forward(self, x: Tensor) -> Tensor:
        n, width = x.shape
        y = nnmpi.tanh(x.reshape(n, width, 1) + self.shifts)
        return y.sum(axis=-1) * (1 / self.functions)


def own_layers() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 8), Scale(8), nn.ReLU(), Outputs(8, 11), Scale(11)),
        *(nn.Tanh(), Outputs(11, 7), Terms(5), Outputs(7, 6), nn.LayerNorm(6), nn.Linear(6, 10)),
    )


def _within(block: Callable[[], nn.Module]) -> Callable[[], nn.Sequential]:
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 8), block(), nn.Linear(8, 10))


MODELS: dict[str, Callable[[], nn.Sequential]] = {
    **GRAPH_MODELS,
    "tied": _within(Tied),
    "tied to an op": _within(TiedToAnOp),
    "measured": _within(Measured),
    "shared": _within(Shared),
    "layers of one's own": own_layers,
}


def built(name: str) -> nn.Sequential:
    model = MODELS[name]()
    model.to("float64")
    return model


def words(sharding: Sharding) -> str:
    return " ".join(x.how + ",gathers" * x.gathers for x in sharding.layers)


def trains_as_one_rank(comm: Comm, name: str) -> None:
    pipelined.trains_as_one_rank({"tp": comm.size}, {"build": MODELS[name]}, comm)

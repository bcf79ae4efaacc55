"""Every layer is captured in a graph, or named here with the reason."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.layer_cases import IMAGES, LAYERS, ROWS, SEQUENCE, Shape
from helpers.training.steps import results

import nnmpi
from nnmpi import Tensor, nn, optim
from nnmpi.nn.models import MODELS

pytestmark = needs_device


class Weighted(nn.Module):
    """A layer behind a weight for each of its inputs, so that it has gradients."""

    def __init__(self, layer: nn.Module, shape: Shape) -> None:
        self.layer, self.weight = layer, nn.Parameter(np.ones(shape, "float32"))

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x * self.weight)
        return y[0] if isinstance(y, tuple) else y


class Vector(nn.Module):
    """Products with vectors."""

    def __init__(self) -> None:
        self.v = nn.Parameter(np.linspace(0, 1, 6, dtype="float32"))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.v) * (self.v @ self.v)


class Chosen(nn.Module):
    """The elements that a mask chooses, whose number is to be read."""

    def forward(self, x: Tensor) -> Tensor:
        return x[x > 0]


MORE: dict[str, tuple[Callable[[], nn.Module], Shape]] = {
    "LSTM": (lambda: nn.LSTM(6, 4, 2, batch_first=True, bidirectional=True), SEQUENCE),
    "GRU": (lambda: nn.GRU(6, 4, batch_first=True), SEQUENCE),
    "RNN": (lambda: nn.RNN(6, 4, batch_first=True), SEQUENCE),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6), ROWS),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(8), IMAGES),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(8), IMAGES),
    "PReLU": (nn.PReLU, ROWS),
    "Dropout2d": (lambda: nn.Dropout2d(0.5), IMAGES),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), IMAGES),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d(1), IMAGES),
    "Upsample": (lambda: nn.Upsample(scale_factor=2), IMAGES),
    "Upsample, bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGES),
    "MixtureOfExperts": (lambda: nn.MixtureOfExperts(6, 8, 4), SEQUENCE),
    "products with vectors": (Vector, ROWS),
    "a mask": (Chosen, ROWS),
}
CASES = MORE | {
    name: (make, shape) for name, (make, shape, _) in LAYERS.items() if name not in MODELS
}
REFUSED = {"a mask": "needs values"}
"""The cases that no graph can contain: a part of the message."""


def steps(make: Callable[[], nn.Module], shape: Shape, is_compiled: bool) -> tuple[Any, int]:
    """(what three steps return, how many of them were replayed)"""
    nnmpi.manual_seed(0)
    model = Weighted(make(), shape).to("cuda")
    optimizer = optim.SGD(model.parameters(), lr=0.1)

    def function(x: Any) -> Tensor:
        optimizer.zero_grad()
        y = model(Tensor(x))
        loss = (y * y).mean()
        loss.backward()
        optimizer.step()
        return loss

    step: Any = nnmpi.compile(function) if is_compiled else function
    rng, losses = np.random.default_rng(0), list[Any]()
    for _ in range(3):
        x = DEVICE.asarray(rng.standard_normal((3, *shape)).astype("float32"))
        losses.append(results(step(x)))
    return losses, getattr(step, "replays", 0)


@pytest.mark.parametrize("name", CASES)
def test_a_layer_is_captured_or_refused_by_name(name: str) -> None:
    if name in REFUSED:
        with pytest.raises(ValueError, match=REFUSED[name]):
            steps(*CASES[name], is_compiled=True)
        return
    losses, replays = steps(*CASES[name], is_compiled=True)
    assert replays == 1  # the first two are compared: before the second, gradients exist
    assert losses == steps(*CASES[name], is_compiled=False)[0]

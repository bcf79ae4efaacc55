"""Models of digits with what other models do not have.

Weights that several layers share, parameters without gradients, gradients that are no numbers, and
every convolution and pool.
"""

from collections.abc import Callable

import numpy as np

import nnmpi
from nnmpi import nn
from nnmpi.arrays import backend
from nnmpi.nn.models import mlp
from nnmpi.nn.passes import current_pass


class Tied(nn.Module):
    """Weights that several layers use, as they are, transposed, cut and detached."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(64, 24), nn.Linear(24, 24)
        self.third, self.last = nn.Linear(24, 24), nn.Linear(24, 10)
        self.third.weight = self.second.weight
        self.scale = nn.Parameter(np.ones(24, np.float32))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y = nnmpi.tanh(self.first(x.reshape(len(x), 64)))
        y = nnmpi.tanh(self.third(self.second(y)))
        y = nnmpi.tanh(y @ self.first.weight[:, :24].T * (1 + self.first.bias.detach()))
        y = nnmpi.tanh(self.third(y * self.scale))
        scores: nnmpi.Tensor = self.last(y)
        return scores


class Unused(nn.Module):
    """Half of it is never used, and one part of it is not trained."""

    def __init__(self) -> None:
        self.idle, self.first, self.fixed = nn.Linear(4, 9), nn.Linear(64, 30), nn.Linear(30, 30)
        self.last, self.spare = nn.Linear(30, 10), nn.Linear(3, 3)
        for p in self.fixed.parameters():
            p.requires_grad = False

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.last(nnmpi.tanh(self.fixed(self.first(x.reshape(len(x), 64)))))
        return y


class Residual(nn.Module):
    """No Sequential, with a skip connection."""

    def __init__(self) -> None:
        self.first, self.norm = nn.Linear(64, 30, bias=False), nn.BatchNorm1d(30)
        self.drop, self.last = nn.Dropout(0.3), nn.Linear(30, 10)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y = nnmpi.tanh(self.norm(self.first(x.reshape(len(x), 64))))
        scores: nnmpi.Tensor = self.last(self.drop(y) + y)
        return scores


def frozen() -> nn.Sequential:
    """Its first layers are not trained, nor is one in the middle."""
    widths = (64, 30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10)
    model = mlp(*widths)
    for k in (1, 3, 7):
        for p in model[k].parameters():
            p.requires_grad = False
    return model


SPOILT = 50  # a row of the training samples; there are fewer for testing


class OneRoot(nn.Module):
    """One sample has a finite output, and a gradient that is no number."""

    def __init__(self) -> None:
        self.scale = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        rows = np.zeros(len(x)) if now is None or now.samples is None else now.samples
        far = np.where(rows == SPOILT, 0, 1)[:, None].astype(x.dtype)
        far = nnmpi.tensor(far, on=backend.of(x.array))
        return x + nnmpi.sqrt(far * nnmpi.absolute(self.scale))


def spoilt() -> nn.Sequential:
    wide = [layer for k in range(8) for layer in (nn.Linear(20, 20), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 20), *wide, OneRoot(), nn.Linear(20, 10))


def every_convolution() -> nn.Sequential:
    """Images of 8x8, then sequences of 6."""
    return nn.Sequential(
        *(nn.Conv2d(1, 12, (3, 2), padding="same"), nn.ReLU(), nn.MaxPool2d((2, 1))),
        *(nn.Conv2d(12, 24, 3, 1, 1, groups=12, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
        *(nn.Conv2d(24, 12, 1), nn.Tanh(), nn.ConvTranspose2d(12, 8, 4, 2, 1), nn.Tanh()),
        *(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Conv2d(8, 8, 3, groups=2)),
        *(nn.Conv2d(8, 6, (1, 2), dilation=(1, 2)), nn.MaxPool2d(2, 1, ceil_mode=True)),
        *(nn.AdaptiveAvgPool2d((2, 3)), nn.Flatten(2), nn.Conv1d(6, 5, 3, padding="same")),
        *(nn.GELU(), nn.Flatten(), nn.Linear(30, 10)),
    )


class Sometimes(nn.Module):
    """Uses its weight in every second step, or in none."""

    def __init__(self, width: int, never: bool = False) -> None:
        self.linear, self.never = nn.Linear(width, width, bias=False), never

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        now = current_pass.get()
        return x if self.never or (now and now.step % 2) else x + self.linear(x)


UNUSUAL_MODELS: dict[str, Callable[[], nn.Module]] = {
    "tied": Tied,
    "unused": Unused,
    "residual": Residual,
    "frozen": frozen,
    "spoilt": spoilt,
}

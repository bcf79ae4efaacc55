"""Models that are no chains: residual blocks, and four layers wired as q, k, v and o.

All of them take digits, (N, 1, 8, 8), and return the scores of 10 classes.
"""

from collections.abc import Callable

from helpers.training.transformer_models import Residual

import nnmpi
from nnmpi import nn

SAMPLE = (1, 8, 8)


class ResidualMLP(nn.Module):
    """x + b(relu(a(x)))."""

    def __init__(self, width: int, inner: int) -> None:
        self.a, self.b = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        return x + self.b(nnmpi.relu(self.a(x)))


def residual_images(channels: int, inner: int) -> nn.Sequential:
    """relu(x + norm(conv(relu(norm(conv(x))))))."""
    first = nn.Conv2d(channels, inner, 3, padding=1, bias=False), nn.BatchNorm2d(inner)
    last = nn.Conv2d(inner, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)
    return nn.Sequential(Residual(*first, nn.ReLU(), *last), nn.ReLU())


class QKVO(nn.Module):
    """o(relu(q(x)) * k(x) + v(x))."""

    def __init__(self, width: int) -> None:
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        y: nnmpi.Tensor = self.o(nnmpi.relu(self.q(x)) * self.k(x) + self.v(x))
        return y


class Attention(nn.Module):
    """Self-attention over (N, L, F), with heads."""

    def __init__(self, width: int, heads: int) -> None:
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads = heads

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        n, length, width = x.shape
        shape = (n, length, self.heads, width // self.heads)
        q, k, v = (f(x).reshape(shape).transpose(0, 2, 1, 3) for f in (self.q, self.k, self.v))
        scores = q @ k.transpose(0, 1, 3, 2) * (width // self.heads) ** -0.5
        mixed = (nnmpi.softmax(scores) @ v).transpose(0, 2, 1, 3)
        y: nnmpi.Tensor = self.o(mixed.reshape(n, length, width))
        return x + y


def residual_mlp() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 20), ResidualMLP(20, 31), ResidualMLP(20, 15), nn.ReLU()),
        nn.Linear(20, 10),
    )


def residual_cnn() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Conv2d(1, 7, 3, padding=1), nn.ReLU(), residual_images(7, 9), nn.MaxPool2d(2)),
        *(residual_images(7, 5), nn.Flatten(), nn.Linear(112, 10)),
    )


def qkvo() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 13), nn.Tanh(), QKVO(13), nn.Linear(13, 10))


def attention() -> nn.Sequential:
    """Over the rows of an image."""
    return nn.Sequential(
        *(nn.Flatten(1, 2), nn.Linear(8, 12), Attention(12, 3), nn.LayerNorm(12)),
        *(ResidualMLP(12, 17), nn.Flatten(), nn.Linear(96, 10)),
    )


GRAPH_MODELS: dict[str, Callable[[], nn.Sequential]] = {
    "residual mlp": residual_mlp,
    "residual cnn": residual_cnn,
    "qkvo": qkvo,
    "attention": attention,
}

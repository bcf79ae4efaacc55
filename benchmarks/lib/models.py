"""The workloads: each model is built from the layers of a library that has PyTorch's names.

W1  mnist-cnn on 1x28x28, batch 64         W3  MLP 4-50-3, batch 64
W2  MLP 784-1024-1024-10, batch 128        W4  CNN 64-128-256 on 3x32x32, batch 64
W5  residual blocks 32-64-128 with BatchNorm on 3x32x32, batch 64
W6  depthwise-separable convolutions 64-128-128-256 with GroupNorm and SiLU on 3x32x32, batch 64
W7  autoencoder 1-32-64-32-1 with ConvTranspose2d on 1x28x28, batch 64

And those of sequences, batch 32, T = 64:

lstm       LSTM(256) alone, on 256 numbers a position
lstm-text  Embedding(65, 256), LSTM(256), Linear(256, 65): a label for each of 65 characters
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np

Layers = list[Any]
Library = Any
"""What has Module, Sequential, Linear, Conv2d, ...: nnmpi.nn, torch.nn or lib.jax_nn."""


class Workload(NamedTuple):
    """The shape of a batch, the number of classes, and the layers of the model.

    Without classes, the samples are their own targets, and the loss is the mean squared error.
    Samples that are words, integers, have a label at each position.
    """

    shape: tuple[int, ...]
    classes: int | None
    layers: Callable[[Library], Layers]
    are_words: bool = False

    @property
    def has_images(self) -> bool:
        return len(self.shape) == 4


def mlp(nn: Library, *widths: int) -> Layers:
    """Linear layers with ReLU between."""
    return [layer for k, o in pairwise(widths) for layer in (nn.Linear(k, o), nn.ReLU())][:-1]


def cnn(nn: Library, channels: tuple[int, ...], widths: tuple[int, ...]) -> Layers:
    """3x3 convolutions with ReLU and pooling, then linear layers."""
    blocks = [
        (nn.Conv2d(c, o, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)) for c, o in pairwise(channels)
    ]
    return [*(layer for block in blocks for layer in block), nn.Flatten(), *mlp(nn, *widths)]


def head(nn: Library, channels: int, classes: int) -> Layers:
    """The mean over the image, and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)]


def residual(nn: Library, c: int, o: int, stride: int) -> Any:
    """ReLU(x + two 3x3 convolutions of x); where the shape changes, x goes through a 1x1 one."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                *(nn.Conv2d(c, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU()),
                *(nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o)),
            )
            self.skip = nn.Sequential()
            if stride > 1:
                self.skip = nn.Sequential(nn.Conv2d(c, o, 1, stride, bias=False), nn.BatchNorm2d(o))
            self.relu = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.relu(self.body(x) + self.skip(x))

    return Block()


def resnet(nn: Library) -> Layers:
    """A stem and one residual block for each number of channels."""
    stem = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()
    blocks = residual(nn, 32, 32, 1), residual(nn, 32, 64, 2), residual(nn, 64, 128, 2)
    return [*stem, *blocks, *head(nn, 128, 10)]


def separable(nn: Library, c: int, o: int, stride: int) -> Layers:
    """A depthwise 3x3 and a 1x1 convolution, each with GroupNorm and SiLU."""
    depthwise = nn.Conv2d(c, c, 3, stride, 1, groups=c, bias=False)
    pointwise = nn.Conv2d(c, o, 1, bias=False)
    return [depthwise, nn.GroupNorm(8, c), nn.SiLU(), pointwise, nn.GroupNorm(8, o), nn.SiLU()]


def mobilenet(nn: Library) -> Layers:
    """A stem and four depthwise-separable convolutions."""
    stem = nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GroupNorm(8, 32), nn.SiLU()
    sizes = (32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)
    return [*stem, *(layer for s in sizes for layer in separable(nn, *s)), *head(nn, 256, 10)]


def autoencoder(nn: Library) -> Layers:
    """Two convolutions that halve the image, and two transposed ones that double it."""
    down = nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()
    up = nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1)
    return [*down, *up]


WORKLOADS = {
    "W1": Workload((64, 1, 28, 28), 10, lambda nn: cnn(nn, (1, 32, 64), (3136, 128, 64, 10))),
    "W2": Workload((128, 784), 10, lambda nn: mlp(nn, 784, 1024, 1024, 10)),
    "W3": Workload((64, 4), 3, lambda nn: mlp(nn, 4, 50, 3)),
    "W4": Workload((64, 3, 32, 32), 10, lambda nn: cnn(nn, (3, 64, 128, 256), (4096, 256, 10))),
    "W5": Workload((64, 3, 32, 32), 10, resnet),
    "W6": Workload((64, 3, 32, 32), 10, mobilenet),
    "W7": Workload((64, 1, 28, 28), None, autoencoder),
}


def lstm(nn: Library, width: int, words: int | None = None) -> Layers:
    """An LSTM over sequences of numbers, or of words, with a score for each word at each position.

    Scores are rows (N T, words): both libraries have their fastest losses for these.
    """

    class Sequences(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(width, width, batch_first=True)
            if words:
                self.embed, self.scores = nn.Embedding(words, width), nn.Linear(width, words)

        def forward(self, x: Any) -> Any:
            if words is None:
                return self.lstm(x)[0]
            return self.scores(self.lstm(self.embed(x))[0]).reshape(-1, words)

    return [Sequences()]


LANGUAGE = {
    "lstm": Workload((32, 64, 256), None, lambda nn: lstm(nn, 256)),
    "lstm-text": Workload((32, 64), 65, lambda nn: lstm(nn, 256, 65), are_words=True),
}
"""Workloads of benchmarks/language.py."""


Batch = tuple[np.ndarray, np.ndarray]
"""Samples and targets."""


def batch(w: Workload) -> Batch:
    """Random samples and targets; the time does not depend on their values."""
    rng = np.random.default_rng(0)
    if w.are_words:
        assert w.classes
        return tuple(rng.integers(0, w.classes, shape) for shape in (w.shape, prod(w.shape)))
    x = rng.standard_normal(w.shape, dtype=np.float32)
    return x, x if w.classes is None else rng.integers(0, w.classes, w.shape[0])


def drawn(parameters: Iterable[Any]) -> Iterator[tuple[Any, np.ndarray]]:
    """Each parameter, with values of its shape: every library starts with the same."""
    rng = np.random.default_rng(1)
    for p in parameters:
        low, high = (0.5, 1) if len(p.shape) == 1 else (-1, 1)
        yield p, rng.uniform(low, high, p.shape).astype(np.float32) / prod(p.shape[1:]) ** 0.5

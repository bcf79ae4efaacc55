"""The models that the command line has by name."""

from collections.abc import Callable
from itertools import pairwise

from nnmpi.nn.layers.activations import ReLU
from nnmpi.nn.layers.basic import Dropout, Flatten, Linear
from nnmpi.nn.layers.conv import Conv2d
from nnmpi.nn.layers.norm import BatchNorm2d
from nnmpi.nn.layers.pooling import MaxPool2d
from nnmpi.nn.module import Module
from nnmpi.nn.sequential import Sequential


def mlp(*widths: int) -> Sequential:
    """Linear layers of these widths with ReLU between; images are flattened."""
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"an mlp needs two widths or more, all at least 1, not {widths}")
    layers: list[Module] = [Flatten()]
    for i, (k, o) in enumerate(pairwise(widths)):
        layers += [Linear(k, o)] if i == len(widths) - 2 else [Linear(k, o), ReLU()]
    return Sequential(*layers)


def iris_mlp() -> Sequential:
    """4-50-3."""
    return Sequential(Linear(4, 50), ReLU(), Linear(50, 3))


def _block(channels: int, out: int) -> list[Module]:
    """3x3 convolution, ReLU and 2x2 max-pool, which halves the image."""
    return [Conv2d(channels, out, 3, padding=1), ReLU(), MaxPool2d(2)]


def digits_cnn() -> Sequential:
    """8x8 images: conv 1-32-64 with BatchNorm, Dropout, fc 256-10."""
    return Sequential(
        Conv2d(1, 32, 3, padding=1, bias=False),
        BatchNorm2d(32),
        ReLU(),
        MaxPool2d(2),
        Conv2d(32, 64, 3, padding=1, bias=False),
        BatchNorm2d(64),
        ReLU(),
        MaxPool2d(2),
        Flatten(),
        Dropout(0.25),
        Linear(256, 10),
    )


def mnist_cnn() -> Sequential:
    """28x28 images: conv 1-32-64, fc 3136-128-64-10."""
    return Sequential(
        *_block(1, 32),
        *_block(32, 64),
        Flatten(),
        Linear(3136, 128),
        ReLU(),
        Linear(128, 64),
        ReLU(),
        Linear(64, 10),
    )


def cifar_cnn() -> Sequential:
    """32x32 colour images: conv 3-64-128-256, fc 4096-256-10."""
    return Sequential(
        *_block(3, 64),
        *_block(64, 128),
        *_block(128, 256),
        Flatten(),
        Linear(4096, 256),
        ReLU(),
        Linear(256, 10),
    )


MODELS: dict[str, Callable[[], Module]] = {
    "iris-mlp": iris_mlp,
    "digits-cnn": digits_cnn,
    "mnist-cnn": mnist_cnn,
    "cifar-cnn": cifar_cnn,
}
"""The models by name; `mlp:784-1024-10` is made by `mlp`."""

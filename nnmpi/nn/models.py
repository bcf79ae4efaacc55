"""The models that the command line knows by name."""

from collections.abc import Callable
from itertools import pairwise

from nnmpi.nn.layers.activations import ReLU
from nnmpi.nn.layers.basic import Dropout, Flatten, Linear
from nnmpi.nn.layers.conv import Conv2d
from nnmpi.nn.layers.norm import BatchNorm2d
from nnmpi.nn.layers.pooling import MaxPool2d
from nnmpi.nn.module import Module
from nnmpi.nn.sequential import Sequential

SIZE = "0*[1-9][0-9]{0,8}"
"""The pattern of a number in the name of a model."""


def mlp(*widths: int) -> Sequential:
    """Returns Linear layers of these widths with ReLU between them, after a Flatten."""
    if len(widths) < 2 or min(widths) < 1:
        raise ValueError(f"an mlp needs two widths or more, all at least 1, not {widths}")
    return Sequential(Flatten(), *_linear(*widths))


def _linear(*widths: int) -> list[Module]:
    """Returns Linear layers of these widths with ReLU between them."""
    layers: list[Module] = []
    for k, o in pairwise(widths):
        layers += [Linear(k, o), ReLU()]
    return layers[:-1]


def _block(channels: int, out: int, *norm: Module) -> list[Module]:
    """3x3 convolution, `norm` (or a bias), ReLU, and a 2x2 max-pool that halves the image."""
    return [Conv2d(channels, out, 3, padding=1, bias=not norm), *norm, ReLU(), MaxPool2d(2)]


def iris_mlp() -> Sequential:
    """A multilayer perceptron 4-50-3."""
    return Sequential(*_linear(4, 50, 3))


def digits_cnn() -> Sequential:
    """A network for 8x8 images: convolutions 1-32-64 with BatchNorm, Dropout, Linear 256-10."""
    blocks = *_block(1, 32, BatchNorm2d(32)), *_block(32, 64, BatchNorm2d(64))
    return Sequential(*blocks, Flatten(), Dropout(0.25), Linear(256, 10))


def mnist_cnn() -> Sequential:
    """A network for 28x28 images: convolutions 1-32-64, Linear 3136-128-64-10."""
    blocks = *_block(1, 32), *_block(32, 64)
    return Sequential(*blocks, Flatten(), *_linear(3136, 128, 64, 10))


def cifar_cnn() -> Sequential:
    """A network for 32x32 colour images: convolutions 3-64-128-256, Linear 4096-256-10."""
    blocks = *_block(3, 64), *_block(64, 128), *_block(128, 256)
    return Sequential(*blocks, Flatten(), *_linear(4096, 256, 10))


MODELS: dict[str, Callable[[], Module]] = {
    "iris-mlp": iris_mlp,
    "digits-cnn": digits_cnn,
    "mnist-cnn": mnist_cnn,
    "cifar-cnn": cifar_cnn,
}
"""The models by name; `mlp:784-1024-10` is made by `mlp`."""

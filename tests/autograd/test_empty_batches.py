"""Batches without samples: right shapes, gradients of zeros, and no warning.

A rank may get no sample of a batch, and has to take part in all collectives nevertheless.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import ON_DEVICE

import nnmpi
from nnmpi import nn
from nnmpi.arrays.backend import CPU, Backend
from nnmpi.nn.models import MODELS, mlp
from nnmpi.nn.passes import LOCAL, Pass, current_pass

Make = Callable[[], nn.Module]


def conv(algorithm: str, *options: int) -> Callable[..., nn.Sequential]:
    """A convolution of 8 channels, in which Winograd pays, and what follows it."""
    return lambda *rest: nn.Sequential(nn.Conv2d(8, 4, *options, algorithm=algorithm), *rest)


def whole_batch(layer: nn.Module) -> nn.Module:
    """Layers that cannot train on an empty batch are tested in evaluation."""
    return layer.eval()


ROWS, IMAGES, SEQUENCE = (6,), (8, 9, 8), (5, 6)
auto, gemm, four = conv("auto", 3, 1, 1), conv("im2col", 3, 2), conv("winograd4", 3)
LAYERS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "Linear": (lambda: nn.Linear(6, 3), ROWS),
    "Linear of sequences": (lambda: nn.Linear(6, 3, bias=False), SEQUENCE),
    "Linear ReLU": (lambda: nn.Sequential(nn.Linear(6, 3), nn.ReLU()), ROWS),
    "Winograd": (auto, IMAGES),
    "Winograd ReLU": (lambda: auto(nn.ReLU()), IMAGES),
    "Winograd pool": (lambda: auto(nn.MaxPool2d(2)), IMAGES),
    "Winograd ReLU pool": (lambda: auto(nn.ReLU(), nn.MaxPool2d(2)), IMAGES),
    "Winograd4": (four, IMAGES),
    "Winograd4 ReLU pool": (lambda: four(nn.ReLU(), nn.MaxPool2d(2)), IMAGES),
    "im2col": (gemm, IMAGES),
    "im2col ReLU": (lambda: gemm(nn.ReLU()), IMAGES),
    "im2col pool": (lambda: gemm(nn.MaxPool2d(2)), IMAGES),
    "im2col ReLU pool": (lambda: gemm(nn.ReLU(), nn.MaxPool2d(2)), IMAGES),
    "im2col of few channels": (lambda: nn.Conv2d(2, 4, 3, bias=False), (2, 5, 6)),
    "Conv2d wide pool": (lambda: gemm(nn.ReLU(), nn.MaxPool2d(3, 1, 1)), IMAGES),
    "Conv2d, groups": (lambda: nn.Conv2d(8, 4, 3, groups=2), IMAGES),
    "Conv2d, depthwise": (lambda: nn.Conv2d(8, 8, 3, padding="same", groups=8), IMAGES),
    "Conv1d": (lambda: nn.Conv1d(5, 4, 3), SEQUENCE),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(8, 4, 3, 2), IMAGES),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((1, 2)), IMAGES),
    "AvgPool2d, unpadded": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGES),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), SEQUENCE),
    "AvgPool1d": (lambda: nn.AvgPool1d(2, 1), SEQUENCE),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), IMAGES),
    "MaxPool2d, overlapping": (lambda: nn.MaxPool2d(3, 2, 1), IMAGES),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1), IMAGES),
    "BatchNorm1d, evaluation": (lambda: whole_batch(nn.BatchNorm1d(6)), ROWS),
    "BatchNorm2d, evaluation": (lambda: whole_batch(nn.BatchNorm2d(8)), IMAGES),
    "BatchNorm1d of sequences, evaluation": (lambda: whole_batch(nn.BatchNorm1d(5)), SEQUENCE),
    "GroupNorm": (lambda: nn.GroupNorm(2, 8), IMAGES),
    "LayerNorm": (lambda: nn.LayerNorm(6), ROWS),
    "RMSNorm": (lambda: nn.RMSNorm(6), ROWS),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(SEQUENCE[-1], 1, 8, 0.5, batch_first=True),
        SEQUENCE,
    ),
    "rotary positions": (lambda: nn.SelfAttention(1, rotary=1e4), (5, 12)),
    "LayerNorm of sequences": (lambda: nn.LayerNorm(SEQUENCE), SEQUENCE),
    "Dropout": (lambda: nn.Dropout(0.5), ROWS),
    "Dropout of images": (lambda: nn.Dropout(0.5), IMAGES),
    "Flatten": (nn.Flatten, IMAGES),
    "ReLU": (nn.ReLU, IMAGES),
    "GELU": (nn.GELU, ROWS),
    "LeakyReLU": (nn.LeakyReLU, IMAGES),
    "SiLU": (nn.SiLU, IMAGES),
    "Identity": (nn.Identity, ROWS),
    "Softmax": (nn.Softmax, ROWS),
    "Sigmoid": (nn.Sigmoid, ROWS),
    "Tanh": (nn.Tanh, ROWS),
    "LogSoftmax": (nn.LogSoftmax, ROWS),
    "mlp": (lambda: mlp(8 * 9 * 8, 5, 3), IMAGES),
    "mnist-cnn": (MODELS["mnist-cnn"], (1, 28, 28)),
    "cifar-cnn": (MODELS["cifar-cnn"], (3, 32, 32)),
    "digits-cnn, evaluation": (lambda: whole_batch(MODELS["digits-cnn"]()), (1, 8, 8)),
}
both = pytest.mark.parametrize("on", [pytest.param(CPU, id="host"), ON_DEVICE])
floats = pytest.mark.parametrize("dtype", ["float32", "float64"])
SAMPLES = np.zeros(0, "int64")


def run(model: nn.Module, x: Any, samples: np.ndarray | None) -> nnmpi.Tensor:
    token = current_pass.set(Pass(0, samples, LOCAL))
    try:
        y: nnmpi.Tensor = model(x)
    finally:
        current_pass.reset(token)
    return y


def spoil(model: nn.Module) -> list[Any]:
    """The parameters, with NaN in their gradient buffers, so that elements not written show."""
    parameters = [*model.parameters()]
    for p in parameters:
        p.grad_memory[...] = np.nan
        p.grad_array = None
    return parameters


def expect_zeros(parameters: list[Any], on: Backend, dtype: str) -> None:
    for p in parameters:
        assert p.has_grad
        assert type(p.grad_array) is on.xp.ndarray
        assert (p.grad_array.shape, p.grad_array.dtype) == (p.shape, dtype)
        assert not p.grad_array.any().item()


@pytest.mark.one_in(4)
@both
@floats
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, dtype: str, on: Backend) -> None:
    """The second pass adds to the gradients of the first, and adds nothing."""
    make, shape = LAYERS[name]
    model = make().to(dtype, on)
    two = run(model, nnmpi.tensor(np.ones((2, *shape), dtype), on=on), None)
    parameters = spoil(model)
    for samples in (None, SAMPLES):
        x = nnmpi.tensor(np.ones((0, *shape), dtype), requires_grad=True, on=on)
        y = run(model, x, samples)
        assert (y.shape, y.dtype) == ((0, *two.shape[1:]), dtype)
        assert type(y.array) is on.xp.ndarray
        y.backward(on.xp.ones(y.shape, dtype))
        assert x.grad_array is not None
        assert (x.grad_array.shape, x.grad_array.dtype) == ((0, *shape), dtype)
        expect_zeros(parameters, on, dtype)


@both
@floats
def test_words(dtype: str, on: Backend) -> None:
    model = nn.Sequential(nn.Embedding(7, 4), nn.Dropout(0.2), nn.Flatten(), nn.Linear(12, 3))
    parameters = spoil(model.to(dtype, on))
    y = run(model, on.asarray(np.zeros((0, 3), "int64")), SAMPLES)
    assert y.shape == (0, 3)
    y.sum().backward()
    expect_zeros(parameters, on, dtype)


@pytest.mark.one_in(3)
@both
@floats
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
@pytest.mark.parametrize("name", [name for name in vars(nn) if name.endswith("Loss")])
def test_losses(name: str, reduction: str, dtype: str, on: Backend) -> None:
    """The mean of no losses is 0, and so is every gradient behind it."""
    here = SAMPLES if name in ("CrossEntropyLoss", "NLLLoss") else np.zeros((0, 3), dtype)
    is_of_three = name == "TripletMarginLoss"
    for target in (here, on.asarray(here)):
        model = nn.Linear(6, 3).to(dtype, on)
        parameters = spoil(model)
        y = model(nnmpi.tensor(np.ones((0, 6), dtype), on=on))
        others = (nnmpi.tensor(target, on=on),) * 2 if is_of_three else (target,)
        loss = getattr(nn, name)(reduction=reduction)(y, *others)
        assert loss.dtype == dtype
        if reduction == "none":
            assert loss.shape == (target.shape[:1] if is_of_three else target.shape)
            loss.backward(on.xp.ones(loss.shape, dtype))
        else:
            assert loss.shape == ()
            assert loss.item() == 0
            loss.backward(on.asarray(np.asarray(0.25, dtype)))
        expect_zeros(parameters, on, dtype)


@both
def test_softmax(on: Backend) -> None:
    for function in (nnmpi.softmax, nnmpi.log_softmax):
        x = nnmpi.tensor(np.ones((0, 4)), requires_grad=True, on=on)
        y = function(x, axis=1)
        y.sum().backward()
        assert (y.shape, x.grad_array.shape) == ((0, 4), (0, 4))


@pytest.mark.parametrize(
    ("old", "new", "is_"),
    [
        ((0, 1, 8, 8), (0, -1), (0, 64)),
        ((0, 6), (0, 2, -1), (0, 2, 3)),
        ((0, 6), (0, 6, -1), (0, 6, 1)),
        ((0, 4), (-1, 2, 2), (0, 2, 2)),
        ((3, 0), (3, -1), (3, 0)),
    ],
)
def test_the_last_length_of_an_empty_array_is_inferred(
    old: tuple[int, ...], new: tuple[int, ...], is_: tuple[int, ...]
) -> None:
    x = nnmpi.tensor(np.zeros(old), requires_grad=True)
    y = x.reshape(*new)
    y.sum().backward()
    assert y.shape == is_
    assert x.grad_array is not None
    assert x.grad_array.shape == old

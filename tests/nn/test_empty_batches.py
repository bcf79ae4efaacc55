"""Batches without samples: right shapes, gradients of zeros, and no warning.

A rank may get no sample of a batch, and has to take part in all collectives nevertheless.
"""

from typing import Any

import numpy as np
import pytest
from helpers.device import ON_DEVICE
from helpers.in_pass import in_pass
from helpers.layer_cases import LAYERS

import nnmpi
from nnmpi import nn
from nnmpi.arrays.backend import CPU, Backend

both = pytest.mark.parametrize("on", [pytest.param(CPU, id="host"), ON_DEVICE])
floats = pytest.mark.parametrize("dtype", ["float32", "float64"])
SAMPLES = np.zeros(0, "int64")


def run(model: nn.Module, x: Any, samples: np.ndarray | None) -> nnmpi.Tensor:
    with in_pass(0, samples):
        y: nnmpi.Tensor = model(x)
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
    make, shape, result = LAYERS[name]
    model = make().to(dtype, on)
    run(model, nnmpi.tensor(np.ones((2, *shape), dtype), on=on), None)
    parameters = spoil(model)
    for samples in (None, SAMPLES):
        x = nnmpi.tensor(np.ones((0, *shape), dtype), requires_grad=True, on=on)
        y = run(model, x, samples)
        assert (y.shape, y.dtype) == ((0, *result), dtype)
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

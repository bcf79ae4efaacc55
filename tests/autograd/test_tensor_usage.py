"""Tensors as users of NumPy and PyTorch expect them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn
from nnmpi.autograd.ops.norm import moments


def test_small_sigmoids_keep_their_digits():
    x = np.array([-80.0, -20.0, -10.0, 0.0, 10.0], "float32")
    exact = 1 / (1 + np.exp(-x.astype("float64")))
    assert np.allclose(nnmpi.sigmoid(x).numpy(), exact, rtol=1e-6, atol=0)
    t = nnmpi.tensor(x, requires_grad=True)
    nnmpi.log(nnmpi.sigmoid(t)).sum().backward()
    assert np.allclose(t.grad, 1 - exact, rtol=1e-6, atol=1e-7)


BASES = [0.0, -0.0, 1.0, -1.0, 2.0, -2.0, np.inf, np.nan]
EXPONENTS = [-2.0, -1.0, 0.0, -0.0, 1.0, 2.0, 3.0, np.inf, -np.inf, np.nan]


@needs_torch
def test_gradients_of_powers_are_pytorchs_at_zero_infinity_and_nan():
    """For two tensors, a number as exponent and a number as base."""
    torch = pytorch()
    a, b = (v.ravel() for v in np.meshgrid(BASES, EXPONENTS))
    pairs = [(a, b), *((np.array(BASES), e) for e in EXPONENTS), *((n, b) for n in BASES)]
    for pair in pairs:
        grads = []
        for library, options in ((nnmpi, {}), (torch, {"dtype": torch.float64})):
            args = [
                library.tensor(v, requires_grad=True, **options) if np.ndim(v) else v for v in pair
            ]
            with np.errstate(all="ignore"):
                (args[0] ** args[1]).sum().backward()
            grads.append([np.asarray(t.grad) for t in args if hasattr(t, "grad")])
        for ours, theirs in zip(*grads, strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def test_format_and_none_and_array():
    t = nnmpi.tensor(1.23456)
    assert f"{t:.3f}" == "1.235"
    assert f"{t}" == str(t.item())  # as in PyTorch; repr(t) names the tensor
    assert (t == None, t != None) == (False, True)  # noqa: E711
    table = nnmpi.tensor([[1.0, 2.0]])
    assert f"{table}" == repr(table)
    assert np.asarray(table).dtype == "float32"
    assert np.asarray(table).tolist() == [[1, 2]]
    assert np.shares_memory(np.asarray(table), table.data)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda t: t.transpose(0, 3),
        lambda t: t.transpose((0, 0)),
        lambda t: t.transpose(-5, 0),
        lambda t: nnmpi.expand_dims(t, 5),
        lambda t: nnmpi.stack([t], axis=7),
        lambda t: nnmpi.stack([]),
        lambda t: nnmpi.swapaxes(t, 0, 2),
    ],
)
def test_axes_that_are_not_there_are_refused(wrong):
    with pytest.raises(ValueError, match=r"axis|axes|at least one tensor"):
        wrong(nnmpi.tensor(np.zeros((2, 3))))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(np.float64(0.5)),
        nn.BatchNorm1d(2, eps=np.float64(1e-5)),
        nn.LayerNorm(2, eps=np.float64(1e-5)),
        lambda t: nnmpi.clip(t, np.float64(-1), np.float64(1)),
    ],
)
def test_numpy_scalars_do_not_promote_types(layer):
    assert layer(nnmpi.tensor(np.ones((4, 2), "float32"))).dtype == "float32"


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("bounds", [(2, 4), (None, 3), (-1, 300), (np.int64(2), np.uint8(4))])
def test_clip_keeps_the_type(dtype, bounds):
    values = np.arange(6, dtype=dtype)
    clipped = nnmpi.clip(nnmpi.tensor(values), *bounds)
    assert clipped.dtype == dtype
    assert clipped.numpy().tolist() == np.clip(values, *bounds).tolist()


def test_clip_of_integers_by_fractions_gives_fractions():
    assert nnmpi.clip(nnmpi.tensor([1, 2, 3]), 1.5).numpy().tolist() == [1.5, 2, 3]


def test_statistics_of_data_far_from_zero():
    x = np.random.default_rng(0).normal(1000, 1, (64, 3, 32, 32)).astype("float32")
    exact = x.astype("float64")
    stats = moments(x)
    assert np.allclose(stats.mean, exact.mean((0, 2, 3)), rtol=1e-6)
    assert np.allclose(stats.m2 / stats.n, exact.var((0, 2, 3)), rtol=1e-3)


LOSING: dict[str, tuple[Callable[..., Any], str]] = {
    "concatenate": (lambda t, c: np.concatenate([c, t]), "nnmpi.concatenate"),
    "stack": (lambda t, c: np.stack((t, c), axis=1), "nnmpi.stack"),
    "where": (lambda t, c: np.where(c.numpy() > 1, t, 0), "nnmpi.where"),
    "clip": (lambda t, c: np.clip(t, 0, 1), "nnmpi.clip"),
    "dot": (lambda t, c: np.dot(c, t.T), "operator @"),
    "einsum": (lambda t, c: np.einsum("ij,ij", t, c), "nnmpi.einsum"),
    "vstack": (lambda t, c: np.vstack([t, c]), "nnmpi.concatenate"),
    "sum": (lambda t, c: np.sum(t), "t.sum()"),
    "mean": (lambda t, c: np.mean(t, axis=0), "t.mean()"),
    "reshape": (lambda t, c: np.reshape(t, (3, 2)), "t.reshape()"),
    "norm": (lambda t, c: np.linalg.norm(t), "nnmpi.sqrt"),
    "roll": (lambda t, c: np.roll(t, 1), "functions of nnmpi"),
    "cumsum": (lambda t, c: np.cumsum(t), "t.cumsum()"),
    "asarray": (lambda t, c: np.asarray(t), "functions of nnmpi"),
    "a list": (lambda t, c: np.array([t, c]), "functions of nnmpi"),
    "a tensor of a list": (lambda t, c: nnmpi.tensor([t, c]), "functions of nnmpi"),
    "an operand in a list": (lambda t, c: np.ones((2, 3)) * c + (t, t), "functions of nnmpi"),
    "a write": (lambda t, c: np.zeros((2, 3)).__setitem__(..., t), "functions of nnmpi"),
}


@pytest.mark.parametrize(("call", "use"), LOSING.values(), ids=LOSING)
def test_functions_of_numpy_that_would_lose_a_gradient_are_refused(call, use):
    values = np.arange(6.0).reshape(2, 3)
    leaf, constant = nnmpi.tensor(values, requires_grad=True), nnmpi.tensor(values)
    for t in (leaf, leaf * 1):
        with pytest.raises(TypeError, match="would lose the gradient") as refusal:
            call(t, constant)
        assert use in str(refusal.value)
        assert ".numpy()" in str(refusal.value)
    expected = call(constant, constant)
    with nnmpi.no_grad():
        for t in (leaf, leaf * 1):
            np.testing.assert_array_equal(call(t, constant), expected)


def test_functions_of_numpy_without_a_gradient_take_any_tensor():
    t = nnmpi.tensor([[1.0, 2.0, 0.5]], requires_grad=True)
    assert np.array_equal(t, t * 1)
    assert (np.shape(t), np.ndim(t), np.argmax(t)) == ((1, 3), 2, 1)
    assert np.zeros_like(t).tolist() == [[0, 0, 0]]
    assert np.asarray(t.numpy()) is t.array
    assert np.stack([t.detach(), t.numpy()]).shape == (2, 1, 3)


@needs_torch
def test_torch_tensors_are_arrays_too():
    torch = pytorch()
    assert nnmpi.tensor(torch.ones(2)).numpy().tolist() == [1, 1]
    assert (nnmpi.tensor([1.0, 2.0]) + torch.ones(2)).numpy().tolist() == [2, 3]

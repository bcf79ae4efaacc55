"""Ops on arrays of 16 bits: sums in float32, and one rounding."""

from collections.abc import Callable
from functools import partial

import ml_dtypes
import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.arrays.dtypes import HALVES, is_float, is_half, types_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.nn.models import mlp

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8}
"""The largest relative error of one rounding."""


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_do_not_stop_growing(dtype: str) -> None:
    """Ones that are added one after the other in 16 bits stay at 2,048, or at 256."""
    n = 5000
    ones = np.ones((n, 3), dtype)
    t = nnmpi.tensor(ones)
    assert t.dtype == np.dtype(dtype)
    found = [t.sum(0), t.sum(axis=0, keepdims=True), t.mean(0) * n, t.T @ t[:, :1]]
    found += [nnmpi.einsum("ij,ik->jk", t, t)]
    for sums in (*(x.numpy() for x in found), column_sum(ones)):
        np.testing.assert_allclose(sums.astype(float), n, rtol=UNIT[dtype])


SCALARS: dict[str, Callable[[nnmpi.Tensor], nnmpi.Tensor]] = {
    "einsum": lambda v: nnmpi.einsum("i,i->", v, v),
    "a product": lambda v: v @ v,
    "norm": lambda v: v.norm(),
}


@pytest.mark.parametrize("scalar", SCALARS.values(), ids=SCALARS)
def test_a_gradient_without_axes_is_passed_on(
    scalar: Callable[[nnmpi.Tensor], nnmpi.Tensor],
) -> None:
    """NumPy adds such gradients up to an element of bfloat16, which is no array."""
    for dtype in (*HALVES, "float32"):
        v = nnmpi.ones(4, dtype=dtype, requires_grad=True)
        (nnmpi.ones(3, dtype=dtype) * scalar(v)).sum().backward()
        assert v.grad.dtype == dtype
        assert v.grad.tolist() == ([1.5] * 4 if scalar is SCALARS["norm"] else [6] * 4)


class Op(nn.Module):
    """A module of one op, which has no kernel."""

    def __init__(self, op: Callable[[nnmpi.Tensor], nnmpi.Tensor]) -> None:
        self.op = op

    def forward(self, t: nnmpi.Tensor) -> nnmpi.Tensor:
        return self.op(t)


OPS: dict[str, Callable[[nnmpi.Tensor], nnmpi.Tensor]] = {
    "subtract": lambda t: t - t.sum(axis=0),
    "divide": lambda t: t / (t * t + 1.5),
    "numbers": lambda t: (t * 0.3 + 1.7) / 3.0,
    "power": lambda t: (t * t + 0.5) ** 1.5,
    "exp": nnmpi.exp,
    "log": lambda t: nnmpi.log(t * t + 0.5),
    "sqrt": lambda t: nnmpi.sqrt(t * t + 0.5),
    "max": lambda t: t.max(axis=1),
    "mean": lambda t: t.mean(axis=0),
    "smoothed loss": lambda t: nn.functional.cross_entropy(
        t, np.arange(len(t)), label_smoothing=0.1
    ),
}

MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: mlp(30, 7), (20, 30)),
    "conv": (lambda: nn.Conv2d(16, 12, 3, padding=1), (5, 16, 8, 8)),
    "winograd2": (lambda: nn.Conv2d(16, 12, 3, algorithm="winograd2"), (5, 16, 9, 8)),
    "winograd4": (lambda: nn.Conv2d(16, 12, 3, algorithm="winograd4"), (5, 16, 9, 8)),
    "im2col": (lambda: nn.Conv2d(16, 12, 3, padding=1, algorithm="im2col"), (5, 16, 9, 8)),
    "few channels": (lambda: nn.Conv2d(3, 16, 3, padding=1), (5, 3, 9, 8)),
    "narrow": (lambda: nn.Conv2d(3, 5, 3, padding=1), (5, 3, 9, 8)),
    "pointwise": (lambda: nn.Conv2d(16, 12, 1), (5, 16, 9, 8)),
    "grouped": (lambda: nn.Conv2d(16, 12, 3, groups=2, padding=1), (5, 16, 9, 8)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 3, groups=16, stride=2), (5, 16, 9, 8)),
    "depthwise multiples": (lambda: nn.Conv2d(8, 16, 3, groups=8), (5, 8, 9, 8)),
    "transposed grouped": (lambda: nn.ConvTranspose2d(6, 4, 3, groups=2), (5, 6, 7, 7)),
    "strided": (lambda: nn.Conv2d(6, 4, 5, stride=2), (5, 6, 11, 11)),
    "transposed": (lambda: nn.ConvTranspose2d(6, 4, 3, stride=2), (5, 6, 7, 7)),
    "batch norm": (lambda: nn.BatchNorm2d(6), (40, 6, 9, 9)),
    "layer norm": (lambda: nn.LayerNorm(300), (9, 300)),
    "RMS norm": (lambda: nn.RMSNorm(300), (9, 300)),
    "rotary": (lambda: nn.SelfAttention(4, rotary=1e4), (3, 40, 4 * 3 * 8)),
    "encoder": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
        (3, 20, 16),
    ),
    "group norm": (lambda: nn.GroupNorm(2, 6), (4, 6, 9, 9)),
    "softmax": (nn.Softmax, (9, 300)),
    "gelu": (nn.GELU, (9, 300)),
    "relu": (nn.ReLU, (9, 300)),
    "relu of images": (nn.ReLU, (4, 6, 10, 10)),
    "leaky relu": (nn.LeakyReLU, (9, 300)),
    "elu": (nn.ELU, (9, 300)),
    "max pool": (lambda: nn.MaxPool2d(3, 2, 1), (4, 6, 10, 10)),
    "max pool 2": (lambda: nn.MaxPool2d(2), (4, 6, 11, 10)),
    "average pool": (lambda: nn.AvgPool2d(3, 2, 1), (4, 6, 10, 10)),
    "average": (lambda: nn.AdaptiveAvgPool2d(3), (4, 6, 10, 10)),
    **{name: (partial(Op, op), (9, 30)) for name, op in OPS.items()},
}


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", MODULES)
def test_values_and_gradients_are_those_of_float32_rounded(name: str, dtype: str) -> None:
    """From the same 16-bit numbers, up to some roundings on the way."""
    build, shape = MODULES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    found = []
    for kind in (dtype, "float32"):
        model = build()
        model.seed = 1
        model.to(dtype).to(kind)
        t = nnmpi.tensor(x.astype(kind), requires_grad=True)
        y = model(t)
        assert y.dtype == np.dtype(kind)
        g = np.asarray(np.random.default_rng(1).standard_normal(y.shape)).astype(dtype).astype(kind)
        y.backward(g)
        found.append([y.numpy(), t.grad_array, *(p.grad_array for p in model.parameters())])
        assert {a.dtype for a in found[-1]} == {np.dtype(kind)}
    for ours, theirs in zip(*found, strict=True):
        scale = np.abs(theirs).max()
        error = np.abs(ours.astype("float32") - theirs).max()
        assert error <= 8 * UNIT[dtype] * scale


@pytest.mark.parametrize("dtype", HALVES)
def test_an_mlp_rounds_each_layer(dtype: str) -> None:
    """One op for all layers gives the bits of an op each."""
    model = mlp(30, 40, 50, 7).to(dtype)
    x = np.random.default_rng(0).standard_normal((20, 30)).astype(dtype)
    found = []
    for run in (model, lambda t: [t := layer(t) for layer in model][-1]):
        model.zero_grad()
        t = nnmpi.tensor(x, requires_grad=True)
        y = run(t)
        y.backward(np.ones(y.shape, dtype))
        found.append([y.numpy(), t.grad_array, *(p.grad_array.copy() for p in model.parameters())])
    for ours, theirs in zip(*found, strict=True):
        assert (ours.view("u2") == theirs.view("u2")).all()


def test_a_layer_rounds_what_sums_have_left_in_float32() -> None:
    model = nn.Linear(4, 3).to("bfloat16")
    x = nnmpi.tensor(np.ones((2, 4), "float32"), requires_grad=True)
    y = model(x)
    y.sum().backward()
    assert y.dtype == ml_dtypes.bfloat16
    assert x.grad_array is not None
    assert x.grad_array.dtype == "float32"
    with pytest.raises(ValueError, match="float64 input for bfloat16 weights"):
        model(nnmpi.tensor(np.ones((2, 4))))


@pytest.mark.parametrize("dtype", HALVES)
def test_comparisons_are_of_truth_values(dtype: str) -> None:
    t = nnmpi.tensor(np.arange(4).astype(dtype))
    assert (t > 1).numpy().tolist() == [False, False, True, True]
    assert (t == t).dtype == np.dtype(bool)


def test_types() -> None:
    bfloat16 = np.dtype(ml_dtypes.bfloat16)
    assert [is_half(np.dtype(t)) for t in ("float16", "int16", "float32")] == [True, False, False]
    assert is_half(bfloat16)
    assert is_float(bfloat16)
    assert not is_float(np.dtype("int16"))
    kinds = (bfloat16, np.dtype("float16"), np.dtype("float32"))
    assert all(types_of(kind).sums == "float32" for kind in kinds)
    assert types_of(np.dtype("float64")).sums == "float64"

"""Functions that PyTorch's programs use on values: grids, places, comparisons, rounding."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import autograd
from nnmpi.autograd import Function

X = np.array([[3.0, -1.5, 0.0], [0.5, 3.0, 2.5]])

CALLS: dict[str, Any] = {
    "a grid": lambda T, t: T.meshgrid(T.arange(2), T.arange(3), indexing="ij"),
    "a grid of columns": lambda T, t: T.meshgrid([t[0], t[1]], indexing="xy"),
    "a grid of one vector": lambda T, t: T.meshgrid(t[0], indexing="xy"),
    "different elements": lambda T, t: T.unique(t),
    "different elements, with places": lambda T, t: t.unique(return_inverse=True),
    "how often": lambda T, t: t.unique(return_inverse=True, return_counts=True),
    "different rows": lambda T, t: T.unique(T.cat([t, t]), dim=0),
    "places": lambda T, t: T.nonzero(t),
    "places by axis": lambda T, t: t.nonzero(as_tuple=True),
    "places of a number": lambda T, t: t[0, 0].nonzero(),
    "places of a condition": lambda T, t: T.where(t > 0),
    "where, of numbers": lambda T, t: T.where(t > 0, 1.0, 0),
    "where, of integers": lambda T, t: T.where(t > 0, 1, 0),
    "where, of truths": lambda T, t: T.where(t > 0, True, False),
    "new zeros": lambda T, t: t.new_zeros(2, 3),
    "new ones of a type": lambda T, t: t.new_ones((2,), dtype=T.int64),
    "a new tensor": lambda T, t: t.long().new_tensor([[1.0, 2.0]]),
    "new, full": lambda T, t: t.new_full((2,), 7),
    "an axis in two": lambda T, t: t.unflatten(1, (3, -1)),
    "rounded": lambda T, t: T.round(t),
    "rounded to decimals": lambda T, t: (t / 3).round(decimals=2),
    "signs": lambda T, t: (t.sign(), (t > 0).sign(), T.sign(t.long())),
    "floors": lambda T, t: (T.floor(t), t.ceil(), T.trunc(t)),
    "equal": lambda T, t: T.tensor([T.equal(t, t), t.equal(t + 1), t.equal(t[0])]),
    "another format": lambda T, t: t.to(
        memory_format=T.channels_last, dtype=T.float32
    ).contiguous(),
}


@needs_torch
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_values_and_types_are_pytorchs(name: str) -> None:
    torch = pytorch()
    x = X[None] if name == "another format" else X
    x = x[None] if name == "another format" else x
    ours, theirs = CALLS[name](nnmpi, nnmpi.tensor(x)), CALLS[name](torch, torch.tensor(x))
    several = isinstance(theirs, tuple | list)
    assert isinstance(ours, tuple | list) == several
    for a, b in zip(*((ours, theirs) if several else ((ours,), (theirs,))), strict=True):
        assert a.shape == tuple(b.shape)
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        assert str(a.dtype) == str(b.dtype).removeprefix("torch.")


TIES: dict[str, tuple[int, Any]] = {
    "median": (60, lambda t: t.median(dim=1)),
    "mode": (16, lambda t: t.mode(dim=1)),
    "max": (60, lambda t: t.max(dim=1)),
    "min": (60, lambda t: t.min(dim=1)),
    "sort": (60, lambda t: t.sort(dim=1, stable=True)),
}
"""Functions whose indices of equal elements are PyTorch's, up to a length of the axis."""


@needs_torch
@pytest.mark.parametrize("name", TIES)
def test_indices_of_equal_elements_are_pytorchs(name: str) -> None:
    torch, rng, (most, f) = pytorch(), np.random.default_rng(0), TIES[name]
    for n in range(1, most + 1):
        a = rng.integers(0, 4, (5, n)).astype(("float32", "int64")[n % 2])
        for ours, theirs in zip(f(nnmpi.tensor(a)), f(torch.tensor(a)), strict=True):
            np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


def test_the_first_of_equal_elements_counts_first() -> None:
    t = nnmpi.tensor([2.0, 1.0, 2.0, 1.0, 1.0, 2.0])
    assert [t.kthvalue(k).indices.item() for k in range(1, 7)] == [1, 3, 4, 0, 2, 5]
    assert t.topk(2).indices.tolist() == [0, 2]
    assert t.topk(4, largest=False).indices.tolist() == [1, 3, 4, 0]
    assert t.mode().indices.item() == 4


def test_numbers() -> None:
    assert (nnmpi.pi, nnmpi.e, nnmpi.inf) == (math.pi, math.e, math.inf)
    assert math.isnan(nnmpi.nan)


def test_gradients_flow_through_grids_and_axes() -> None:
    t = nnmpi.tensor([1.0, 2.0], requires_grad=True)
    rows, columns = nnmpi.meshgrid(t, nnmpi.arange(3), indexing="ij")
    (rows * columns).unflatten(1, (-1, 1)).sum().backward()
    np.testing.assert_array_equal(np.asarray(t.grad), [3.0, 3.0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nnmpi.meshgrid(nnmpi.ones(2), indexing="yx"), "must be 'ij' or 'xy'"),
        (lambda: nnmpi.meshgrid(nnmpi.ones(2, 2)), "give vectors"),
    ],
)
def test_grids_that_are_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


class Cube(Function):
    """x ** 3, with the derivative of `power` x ** 2."""

    power = 3.0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return Cube.power * g * x * x


def test_gradients_are_compared_with_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    x = nnmpi.tensor(X, requires_grad=True)
    before = x.numpy().copy()
    assert autograd.gradcheck(Cube.apply, x)
    assert autograd.gradcheck(lambda a, b: (a * b, a.sum()), (x, nnmpi.tensor(2.0 * X)))
    monkeypatch.setattr(Cube, "power", 2.0)
    with pytest.raises(RuntimeError, match="result 0 for input 0 differ by up to 9"):
        autograd.gradcheck(Cube.apply, [x])
    assert not autograd.gradcheck(Cube.apply, [x], raise_exception=False)
    np.testing.assert_array_equal(x.numpy(), before)
    assert x.grad is None

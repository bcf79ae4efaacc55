"""Functions that PyTorch's programs use on values: grids, places, comparisons, rounding."""

import math
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import needs_torch, same_as_pytorch

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
    "sums in a type": lambda T, t: (
        *(f(dtype=T.float32) for f in (t.sum, t.mean, t.prod)),
        *(f(1, dtype=T.int32) for f in (t.sum, t.prod, t.cumsum, t.cumprod)),
        *(f(t, dim=0, dtype=T.float32) for f in (T.sum, T.mean, T.prod, T.cumsum, T.cumprod)),
        t.long().sum(dtype=T.int8),
    ),
    "rounded quotients": lambda T, t: (
        T.div(t, 0.5, rounding_mode="trunc"),
        t.div(t[1], rounding_mode="floor"),
        (t * 3).long().div(-2, rounding_mode="trunc"),
        T.div((t * 3).long(), 2, rounding_mode="floor"),
        T.div(t, 2),
        t.clone().div_(2, rounding_mode="floor"),
    ),
    "other elements": lambda T, t: (
        *(T.atan(t), t.atan(), T.log2(t + 2), (t + 2).log2(), t.cumprod(1), T.cumprod(t, 0)),
        *((1 / t).nan_to_num(), T.nan_to_num(1 / t, posinf=7.0)),
    ),
    "sums of products": lambda T, t: (
        *(T.addcmul(t, t, t[0], value=2), t.addcmul(t, t), T.addcdiv(t, t, t[1], value=0.5)),
        *(T.lerp(t, t[0], 0.25), t.lerp(t[1], 0.75), t.lerp(t[0], t.sign() / 4)),
        *(T.mv(t, t[0]), t.mv(t[1]), T.dot(t[0], t[1]), t[0].dot(t[1])),
    ),
    "joined": lambda T, t: (
        *(T.hstack([t, t]), T.hstack([t[0], t[1, 0]]), T.vstack([t, t])),
        *(T.vstack((t[0], t[1])), T.vstack([t[0, 0], t[1, 0]])),
    ),
    "triangles": lambda T, t: (t.tril(), t.triu(1), T.triu(t, -1)),
    "axes moved": lambda T, t: (
        *(T.movedim(t, 0, 1), t[None].movedim((0, -1), (1, 0)), T.moveaxis(t[None], 2, 0)),
    ),
    "selected by a mask": lambda T, t: (
        *(T.masked_select(t, t > 0), t.masked_select(t[0] > 0), t[:1].masked_select(t > 0)),
    ),
    "reduced by place": lambda T, t: (
        *(
            t.scatter_reduce(1, (t > 0).long(), t * 2, name, include_self=k)
            for name in ("sum", "mean", "prod", "amax", "amin")
            for k in (True, False)
        ),
        t.long().scatter_reduce(0, (t < 0).long(), t.long(), "mean"),
        T.scatter_reduce(t[0, 0], 0, (t > 9)[0, 0].long(), t[1, 1], reduce="amax"),
        t.clone().scatter_reduce_(0, (t < 0).long(), t, "amin"),
    ),
    "in memory": lambda T, t: T.tensor(
        [
            *(*t.stride(), *t.T.stride(), t.stride(-1), *t[:, :1].stride(), *t[:0].stride()),
            *(u.is_contiguous() for u in (t, t.T, t[:, 1:], t[1:], t.T.contiguous())),
            *(t.is_floating_point(), T.is_floating_point(t > 0)),
        ]
    ),
    "limits": lambda T, t: T.tensor(
        [
            getattr(T.finfo(getattr(T, kind)), name)
            for kind in ("float16", "float32", "float64", "bfloat16")
            for name in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution")
        ],
        dtype=T.float64,
    ),
    "limits of integers": lambda T, t: T.tensor(
        [
            getattr(T.iinfo(getattr(T, kind)), name)
            for kind in ("uint8", "int8", "int16", "int32", "int64")
            for name in ("bits", "max", "min")
        ]
    ),
    "sizes by name": lambda T, t: (
        *(T.zeros(size=(2, 3)), T.ones(size=(2,)), T.zeros_like(T.empty(size=[1, 2]))),
        *(T.rand(size=(2, 3)) * 0, T.randn(size=(4,)) * 0, t.new_zeros(size=(2,))),
        *(T.randint(0, 1, size=(2,)), T.full(size=(2,), fill_value=3), t.new_ones(size=(1,))),
    ),
    "the class as a function": lambda T, t: (
        *(T.Tensor([1, 2]), T.Tensor([[1.5], [2.0]]), T.Tensor(), T.Tensor((1.5, 2))),
        *(T.zeros_like(u) for u in (T.Tensor(2, 3), T.Tensor(1, 2, 3, 4), T.Tensor(3))),
    ),
    "another format": lambda T, t: (
        t[None, None].to(memory_format=T.channels_last, dtype=T.float32).contiguous()
    ),
}


@needs_torch
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore")
def test_values_and_types_are_pytorchs(name: str) -> None:
    same_as_pytorch(lambda n: CALLS[name](n, n.tensor(X)), rtol=0, atol=0)


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
    rng, (most, f) = np.random.default_rng(0), TIES[name]
    for length in range(1, most + 1):
        a = rng.integers(0, 4, (5, length)).astype(("float32", "int64")[length % 2])
        same_as_pytorch(lambda n, a=a: f(n.tensor(a)), rtol=0, atol=0)


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


def test_limits_print_as_in_pytorch() -> None:
    assert repr(nnmpi.finfo(nnmpi.float16)) == (
        "finfo(resolution=0.001, min=-65504, max=65504, eps=0.000976562, "
        "smallest_normal=6.10352e-05, tiny=6.10352e-05, dtype=float16)"
    )
    assert repr(nnmpi.iinfo(nnmpi.int8)) == "iinfo(min=-128, max=127, dtype=int8)"
    assert nnmpi.finfo() == nnmpi.finfo("float32")
    for call, other in ((nnmpi.finfo, "int64"), (nnmpi.iinfo, "float32")):
        with pytest.raises(TypeError, match=f"{other} is no .*: write nnmpi"):
            call(other)


@pytest.mark.parametrize("name", ["Tensor", "FloatTensor", "LongTensor"])
def test_a_tuple_of_integers_may_be_a_size(name: str) -> None:
    made = getattr(nnmpi, name)
    for size in ((2, 3), nnmpi.zeros(2, 3).size()):
        with pytest.raises(
            TypeError, match=r"t.size\(\) or elements: write nnmpi.zeros\(\(2, 3\)\)"
        ):
            made(size)
    assert made([2, 3]).tolist() == [2, 3]
    assert made((2,) * 9).tolist() == [2] * 9  # a batch, as of zip(*samples)


def test_a_variable_is_a_tensor_without_history() -> None:
    t = nnmpi.ones(2, requires_grad=True)
    v = autograd.Variable(t * 2)
    assert (v.requires_grad, v.is_leaf) == (False, True)
    assert autograd.Variable(v, requires_grad=True).requires_grad
    assert isinstance(t, autograd.Variable)
    assert nnmpi.Tensor([1.0], requires_grad=True).requires_grad
    assert not isinstance(X, autograd.Variable)


class Doubled(Function):
    """2 x, with a gradient of a wrong shape for an argument that needs none."""

    @staticmethod
    def forward(ctx: Any, x: Any, other: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return g * 2, nnmpi.ones(7)


def test_gradients_for_inputs_that_need_none_are_ignored() -> None:
    x, other = nnmpi.ones(3, requires_grad=True), nnmpi.ones(2)
    Doubled.apply(x, other).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match=r"a gradient of shape \(7,\) for argument 1"):
        Doubled.apply(x, other.requires_grad_()).sum().backward()


RETAINED: dict[str, Any] = {
    "twice": lambda y: (y.sum().backward(retain_graph=True), y.sum().backward()),
    "used before": lambda y: (y * y).sum().backward(),
    "by grad": lambda y: (y * 3).exp().sum().backward(),
}


@needs_torch
@pytest.mark.parametrize("name", RETAINED)
def test_a_result_retains_its_gradient(name: str) -> None:
    def program(n: Any, x: Any) -> Any:
        y = x * 2
        y.retain_grad()
        RETAINED[name](y)
        return y.grad

    same_as_pytorch(program, np.array([1.0, 0.5]))


def test_what_cannot_retain_a_gradient() -> None:
    leaf = nnmpi.ones(2, requires_grad=True)
    leaf.retain_grad()  # has it anyway
    with pytest.raises(RuntimeError, match="compute it from one that does"):
        nnmpi.ones(2).retain_grad()
    y = leaf * 2
    y.retain_grad()
    grad = autograd.grad(y.sum(), leaf)[0]
    assert (y.grad.tolist(), grad.tolist()) == ([1, 1], [2, 2])
    y = leaf * 2
    y.retain_grad()
    y *= 3
    with pytest.raises(RuntimeError, match="was written in place after it"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match=r"write t = t.clone\(\) before it"):
        Checkpointed()(leaf).retain_grad()


class Checkpointed(nnmpi.nn.Module):
    """2 x, computed again in the backward pass."""

    def forward(self, x: Any) -> Any:
        return nnmpi.utils.checkpoint.checkpoint(lambda x: x * 2, x)

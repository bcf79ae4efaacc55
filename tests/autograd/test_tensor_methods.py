"""Methods of tensors by PyTorch's and by NumPy's names, on both backends."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device, waits
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi.autograd import Tensor
from nnmpi.autograd.check import directional_error

X = np.random.default_rng(0).standard_normal((2, 1, 3, 4))

INF, NAN = float("inf"), float("nan")
FINITE = (lambda t: t.isinf(), lambda t: t.isnan(), lambda t: t.isfinite())

SAME: dict[str, Callable[[Any], Any]] = {
    "flatten": lambda t: t.flatten(),
    "flatten from": lambda t: t.flatten(1),
    "flatten from, to": lambda t: t.flatten(start_dim=1, end_dim=-2),
    "flatten one": lambda t: t.flatten(2, 2),
    "squeeze": lambda t: t.squeeze(),
    "squeeze one": lambda t: t.squeeze(1),
    "squeeze one by name": lambda t: t.squeeze(dim=-3),
    "squeeze what is not 1": lambda t: t.squeeze(0),
    "squeeze several": lambda t: t.squeeze(dim=(0, 1)),
    "unsqueeze": lambda t: t.unsqueeze(0),
    "unsqueeze by name": lambda t: t.unsqueeze(dim=-1),
    "unsqueeze inside": lambda t: t.unsqueeze(-2),
    "view": lambda t: t.view(2, -1),
    "view by size": lambda t: t.view(t.size(0), t.size()[2], -1),
    "permute": lambda t: t.permute(0, 2, 3, 1),
    "permute, a tuple": lambda t: t.permute((3, -2, 0, 1)),
    "split": lambda t: t.split(2, 2),
    "split, lengths": lambda t: t.split([1, 0, 3], dim=-1),
    "split, all": lambda t: t.split(9),
    "transpose two": lambda t: t.transpose(-2, -1),
    "transpose two of a matrix": lambda t: t[0, 0].transpose(0, 1),
    "t and mT": lambda t: (t[0, 0].t(), t.mT),
    "expand": lambda t: t.expand(5, 2, -1, 3, 4),
    "expand as": lambda t: t[:, :, :1].expand_as(t),
    "view as": lambda t: t.view_as(t.permute(3, 2, 1, 0)),
    "chunk": lambda t: t.chunk(3, dim=-1),
    "clamp": lambda t: t.clamp(min=-0.5, max=0.5),
    "clamp at one end": lambda t: t.clamp(0.1),
    "clamp between tensors": lambda t: (t.clamp(-abs(t[0]), t[1].abs()), t.clamp(t[:, :, :1])),
    "clamp below a tensor above another": lambda t: t.clamp(t.cos(), t.sin()),
    "clamp at a tensor with a gradient": lambda t: t.clamp(max=t.mean()),
    "remainders": lambda t: (t % 0.3, 1 % t.detach(), t.remainder(-t.exp()), t % t[:, :, :, 1:2]),
    "quotients rounded down": lambda t: (t.detach() // 0.3, 1 // t.detach(), t.long() // 3),
    "masked fill": lambda t: t.masked_fill(t > 0, float("-inf")).exp(),
    "to": lambda t: (t.float(), t.to(dtype=t.dtype), t.half().to(t), t.double()),
    "to types without gradients": lambda t: (t.long(), t.int(), (t > 0).bool(), (t > 0).float()),
    "copies": lambda t: (t.clone(), t.contiguous(), t.to(t, copy=True)),
    "elements": lambda t: (t.abs().log(), t.neg(), t.abs().sqrt(), t.sin(), t.cos(), t.relu()),
    "curves": lambda t: (t.exp(), t.tanh(), t.sigmoid(), t.softmax(dim=1), t.log_softmax(-1)),
    "arithmetic": lambda t: (t.add(1), t.sub(t), t.mul(t), t.div(2.0), t.pow(2), t.maximum(-t)),
    "products": lambda t: (t.matmul(t.mT), t[:, 0].bmm(t[:, 0].mT), t[0, 0].mm(t[0, 0].t())),
    "comparisons": lambda t: (t.eq(t), t.ne(0), t.lt(0), t.le(0), t.gt(0), t.ge(0)),
    "extremes": lambda t: (t.amax(dim=2), t.amin((0, 3), keepdim=True), t.argmin(dim=-1)),
    "what is finite": lambda t: [
        f(t.masked_fill(t > 0, n)) for f in FINITE for n in (INF, -INF, NAN)
    ],
    "spread of the sample or of all": lambda t: (t.std(3, unbiased=True), t.var(3, unbiased=False)),
    "sum": lambda t: t.sum(dim=1),
    "sum, several": lambda t: t.sum(dim=[0, -1], keepdim=True),
    "mean": lambda t: t.mean(dim=(1, 2)),
    "var": lambda t: t.var(dim=2, correction=0),
    "var, 1": lambda t: t.var(dim=2, correction=1, keepdim=True),
    "std": lambda t: t.std(dim=(0, 3), correction=1),
    "prod": lambda t: t.prod(dim=3, keepdim=True),
    "prod of all": lambda t: t.prod(),
    "cumsum": lambda t: t.cumsum(2),
    "cumsum by name": lambda t: t.cumsum(dim=-1),
    "argmax": lambda t: t.argmax(dim=2, keepdim=True),
    "any": lambda t: (t > 1).any(dim=3),
    "all": lambda t: (t > -1).all(dim=2, keepdim=True),
    "any of all": lambda t: (t > 9).any(),
    "values and indices": lambda t: [*t.max(2), *t.min(dim=-1, keepdim=True), *t.sort(3, True)],
    "values of pairs": lambda t: (t.max(-1).values, t.median(2)[0], t.topk(2, dim=3).values),
    "larger of two": lambda t: (t.max(t.cos()), t.min(-t)),
    "one by its rank": lambda t: [t.median(), *t.median(3), *t.kthvalue(2, 2), t.argsort(2)],
    "quantiles": lambda t: [
        *(t.quantile(0.3), t.quantile(0.25, 2), t.quantile(0.9, -1, True), t.quantile(1.0)),
        *(t.quantile(0.4, 3, interpolation=how) for how in ("lower", "higher", "nearest")),
        t.quantile(0.4, 0, True, interpolation="midpoint"),
    ],
    "log of a sum": lambda t: [t.logsumexp(2), t.logsumexp((0, 3), True), (t * 900).logsumexp(-1)],
    "formulas": lambda t: [t.square(), t.reciprocal(), t.square().rsqrt()],
    "truths": lambda t: [
        t.logical_not(),
        *(getattr(t.long(), f"logical_{name}")(t > 0) for name in ("and", "or", "xor")),
    ],
    "slices": lambda t: (t.narrow(3, 1, 2), t.narrow(2, -2, 2), t.select(2, -1), t.select(0, 1)),
    "types by other words": lambda t: (t.type("torch.LongTensor"), t.long().type_as(t)),
    "the most frequent": lambda t: [*t.long().mode(3)],
    "spread": lambda t: (t.std(), t.var(2), t.std((0, 3), keepdim=True), t.var(2, False, True)),
    "masks": lambda t: ((t > -1) & (t < 1) | ~(t <= 2)) ^ (t == 0),
    "masks and numbers": lambda t: (t > 0) & True,
    "0d": lambda t: t.sum().flatten(),
    "0d, squeezed": lambda t: t.sum().squeeze(),
    "0d, summed up": lambda t: t.sum().cumsum(0),
}


def results(y: Any) -> list[Any]:
    return [*y] if isinstance(y, tuple | list) else [y]


def gradient(library: Any, t: Any, call: Callable[[Any], Any]) -> tuple[list[Any], Any]:
    """The values, and the gradient of sum(i * squares of value number i)."""
    ys = results(call(t))
    if any(y.requires_grad for y in ys):
        parts = [((i + 1) * y * y).sum() for i, y in enumerate(ys)]
        sum(parts[1:], parts[0]).backward()
    return ys, t.grad


@needs_torch
@pytest.mark.parametrize("call", SAME.values(), ids=SAME)
def test_values_and_gradients_are_pytorchs(call: Any) -> None:
    same_as_pytorch(lambda n, t: call(t), X, atol=1e-13)


@needs_device
@pytest.mark.one_in(4)
@pytest.mark.parametrize("call", SAME.values(), ids=SAME)
def test_a_device_gives_the_same_without_waits(call: Any) -> None:
    with waits(0):
        ys, grad = gradient(nnmpi, Tensor(DEVICE.asarray(X), requires_grad=True), call)
    theirs, expected = gradient(nnmpi, nnmpi.tensor(X, requires_grad=True), call)
    for y, z in zip(ys, theirs, strict=True):
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-12, strict=True)
    if grad is not None:
        np.testing.assert_allclose(grad.numpy(), expected, rtol=1e-12, atol=1e-13)


def extremes(name: str) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    """max and min of PyTorch, by NumPy's words as in NumPy."""
    of, place = getattr(np, name), getattr(np, f"arg{name}")
    return {
        f"{name} of all": (lambda t: getattr(t, name)(), of(X)),
        f"{name} and where it is": (lambda t: getattr(t, name)(2)[0], of(X, 2)),
        f"where {name} is": (lambda t: getattr(t, name)(2).indices, place(X, 2)),
        f"{name}, kept axis": (
            lambda t: getattr(t, name)(dim=-1, keepdim=True)[0],
            of(X, -1, keepdims=True),
        ),
        f"where {name} is, kept axis": (
            lambda t: getattr(t, name)(dim=-1, keepdim=True).indices,
            place(X, -1, keepdims=True),
        ),
        f"{name} of two": (lambda t: getattr(t, name)(-t), getattr(np, f"{name}imum")(X, -X)),
        f"{name} by axis": (lambda t: getattr(t, name)(axis=2), of(X, 2)),
        f"{name} by two axes": (lambda t: getattr(t, name)((0, 2)), of(X, (0, 2))),
        f"numpy.{name}": (lambda t: of(t, axis=2), of(X, 2)),
    }


ANSWERS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "std of all, by axis": (lambda t: t.std(axis=None), X.std()),
    "std, by ddof": (lambda t: t.std(ddof=0), X.std()),
    "var, by axis": (lambda t: t.var(axis=2), X.var(2)),
    "var, by ddof": (lambda t: t.var(2, ddof=0), X.var(2)),
    "numpy.std": (lambda t: np.std(t, axis=2), X.std(2)),
    "var": (lambda t: t.var(), X.var(ddof=1)),
    "var, corrected": (lambda t: t.var(correction=1), X.var(ddof=1)),
    "var, unbiased": (lambda t: t.var(unbiased=True), X.var(ddof=1)),
    "var, biased": (lambda t: t.var(False), X.var()),
    "var, the function": (nnmpi.var, X.var(ddof=1)),
    "std of rows": (lambda t: t.std(2), X.std(2, ddof=1)),
    "std along two axes": (lambda t: t.std(dim=(0, 2)), X.std((0, 2), ddof=1)),
    **extremes("max"),
    **extremes("min"),
    "sum over no dim": (lambda t: t.sum(dim=()), X.sum()),
    "sum over no dims": (lambda t: t.sum([]), X.sum()),
    "sum over no axis": (lambda t: t.sum(axis=()), X),
    "cumsum of all": (lambda t: t.cumsum(), X.cumsum()),
    "flatten": (lambda t: nnmpi.flatten(t, 1, 2), X.reshape(2, 3, 4)),
    "squeeze": (lambda t: nnmpi.squeeze(t, dim=1), X[:, 0]),
    "unsqueeze": (lambda t: nnmpi.unsqueeze(t, 0), X[None]),
    "expand_dims": (lambda t: nnmpi.expand_dims(t, dim=-1), X[..., None]),
    "split": (lambda t: nnmpi.split(t, 1, dim=2)[1], X[:, :, 1:2]),
    "stack": (lambda t: nnmpi.stack([t, t], dim=1), np.stack([X, X], 1)),
    "concatenate": (lambda t: nnmpi.concatenate([t, t], dim=-1), np.concatenate([X, X], 3)),
    "softmax": (lambda t: nnmpi.softmax(t, dim=2), np.exp(X) / np.exp(X).sum(2, keepdims=True)),
    "log_softmax": (lambda t: nnmpi.log_softmax(t, dim=3).exp().sum(3), np.ones((2, 1, 3))),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_those_of_numpy(name: str) -> None:
    call, expected = ANSWERS[name]
    np.testing.assert_allclose(np.asarray(call(nnmpi.tensor(X))), expected, rtol=1e-14)


SMOOTH = ("flatten from", "squeeze", "unsqueeze", "var, 1", "std", "prod", "prod of all", "cumsum")


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_finite_differences(name: str) -> None:
    assert directional_error(SAME[name], X) < 2e-6


@needs_device
def test_a_gradient_flows_between_devices() -> None:
    t = nnmpi.tensor(X, requires_grad=True)
    y = t.to(DEVICE)
    assert (y.device.name, y.to(DEVICE), t.cpu(), t.dim()) == ("cuda", y, t, 4)
    (y.cpu() * 3).sum().backward()
    assert (t.grad == 3).all()
    assert nnmpi.zeros(2, device=y.device).device.type == "cuda"
    assert f"{nnmpi.device('cpu')}" == "cpu"
    assert not t.detach().requires_grad_().requires_grad_(False).requires_grad
    assert t.tolist() == X.tolist()
    assert t.allclose(X + 1e-9)
    assert not nnmpi.allclose(t, X + 1)


def test_size_is_a_number_and_a_method() -> None:
    t = nnmpi.tensor(X)
    assert t.size == t.numel() == 24
    assert (t.size(), t.size(0), t.size(dim=-1)) == ((2, 1, 3, 4), 2, 4)
    assert pickle.loads(pickle.dumps(t.size)) == 24


def test_a_view_is_written_where_it_is_the_same_memory() -> None:
    t = nnmpi.tensor(X)
    t.view(-1)[0] = 7
    assert t.numpy()[0, 0, 0, 0] == 7
    other = t.permute(3, 0, 1, 2).view(-1)
    assert other.numpy().tolist() == t.numpy().transpose(3, 0, 1, 2).reshape(-1).tolist()
    other += 1  # as PyTorch's reshape, where view raises an error
    assert (other.numpy()[0], t.numpy()[0, 0, 0, 0]) == (8, 7)


def test_from_numpy_shares_memory() -> None:
    x = X.copy()
    t = nnmpi.from_numpy(x)
    t[...] = 0
    assert not x.any()
    x[...] = 2
    assert t.numpy().min() == 2


def test_the_gradient_of_a_spread_of_equals_is_zero() -> None:
    t = nnmpi.tensor(np.ones((2, 3)), requires_grad=True)
    t.std(axis=1).sum().backward()
    assert not t.grad.any()


def test_empty_tensors() -> None:
    t = nnmpi.tensor(np.ones((0, 3)), requires_grad=True)
    shapes = [
        t.flatten().shape,
        t.unsqueeze(0).squeeze().shape,
        t.prod(axis=1).shape,
        t.var(axis=1).shape,
        t.std(axis=1).shape,
        t.cumsum(0).shape,
        *(part.shape for part in t.split(2)),
        (~(t > 0)).all(axis=1).shape,
    ]
    assert shapes == [(0,), (0, 3), (0,), (0,), (0,), (0, 3), (0, 3), (0,)]
    assert t.prod(axis=0).numpy().tolist() == [1, 1, 1]
    assert bool((t > 0).all())
    for call in (
        lambda t: t.prod(),
        lambda t: t.prod(0).sum(),
        lambda t: t.std(1).sum(),
        lambda t: t.cumsum(0).sum(),
        lambda t: t.flatten().sum(),
    ):
        t.grad = None
        call(t).backward()
        assert t.grad.shape == (0, 3)


def test_masks_of_arrays_and_integers() -> None:
    mask = nnmpi.tensor([True, False, True])
    other = np.array([True, True, False])
    for y, expected in (
        (mask & other, [1, 0, 0]),
        (other | mask, [1, 1, 1]),
        (True ^ mask, [0, 1, 0]),
        (~mask, [0, 1, 0]),
    ):
        assert isinstance(y, Tensor)
        assert (y.dtype, y.numpy().tolist()) == ("bool", expected)
    assert (nnmpi.tensor([6, 3]) & 2).numpy().tolist() == [2, 2]


def test_a_tensor_of_an_integer_is_an_index() -> None:
    t = nnmpi.tensor([3, 9, 4])
    assert ["a", "b", "c"][t.argmax()] == "b"
    assert t[: t.argmax()].numpy().tolist() == [3]
    with pytest.raises(TypeError, match="integer"):
        _ = [1, 2][nnmpi.tensor(1.0)]

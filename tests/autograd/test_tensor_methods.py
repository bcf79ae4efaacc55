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


SMOOTH = ("flatten from", "squeeze", "unsqueeze", "var, 1", "std", "prod", "prod of all", "cumsum")


@pytest.mark.parametrize("name", SMOOTH)
def test_gradients_are_finite_differences(name: str) -> None:
    assert directional_error(SAME[name], X) < 2e-6


def test_functions_are_the_methods() -> None:
    t = nnmpi.tensor(X)
    pairs = (
        (nnmpi.flatten(t, 1, 2), t.flatten(1, 2)),
        (nnmpi.squeeze(t, dim=1), t.squeeze(1)),
        (nnmpi.unsqueeze(t, 0), t.unsqueeze(0)),
        (nnmpi.expand_dims(t, dim=-1), t.unsqueeze(-1)),
        *zip(nnmpi.split(X, 1, dim=2), t.split(1, 2), strict=True),
        (nnmpi.stack([t, t], dim=1), nnmpi.stack([t, t], 1)),
        (nnmpi.concatenate([t, t], dim=-1), nnmpi.concatenate([t, t], 3)),
        (nnmpi.softmax(t, dim=1), nnmpi.softmax(t, 1)),
        (nnmpi.log_softmax(t, dim=0), nnmpi.log_softmax(t, axis=0)),
    )
    for one, other in pairs:
        np.testing.assert_array_equal(one.numpy(), other.numpy(), strict=True)


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


def test_spread_has_numpys_divisor_by_numpys_words() -> None:
    t = nnmpi.tensor(X)
    assert float(t.std(axis=None)) == float(t.std(ddof=0)) == pytest.approx(X.std())
    np.testing.assert_allclose(t.var(axis=2).numpy(), X.var(2))
    np.testing.assert_allclose(t.var(2, ddof=0).numpy(), X.var(2))
    np.testing.assert_allclose(np.std(t, axis=2), X.std(2))


def test_spread_divides_by_one_less() -> None:
    t = nnmpi.tensor(X)
    for var in (t.var(), t.var(correction=1), t.var(unbiased=True), nnmpi.var(t)):
        assert float(var) == pytest.approx(X.var(ddof=1))
    np.testing.assert_allclose(t.std(2).numpy(), X.std(2, ddof=1))
    np.testing.assert_allclose(t.std(dim=(0, 2)).numpy(), X.std((0, 2), ddof=1))
    assert float(t.var(False)) == pytest.approx(X.var())


def test_max_and_min_have_three_meanings_and_numpys_words_have_numpys() -> None:
    t = nnmpi.tensor(X)
    for name, place in (("max", np.argmax), ("min", np.argmin)):
        method, expected = getattr(t, name), getattr(X, name)
        values, indices = method(2)
        np.testing.assert_array_equal(values.numpy(), expected(2))
        np.testing.assert_array_equal(indices.numpy(), place(X, 2))
        pair = method(dim=-1, keepdim=True)
        np.testing.assert_array_equal(pair.values.numpy(), expected(-1, keepdims=True))
        np.testing.assert_array_equal(pair[1].numpy(), place(X, -1)[..., None])
        assert float(method()) == float(expected())
        other = method(-t).numpy()
        np.testing.assert_array_equal(other, getattr(np, f"{name}imum")(X, -X))
        np.testing.assert_array_equal(method(axis=2).numpy(), expected(2))
        np.testing.assert_array_equal(method((0, 2)).numpy(), expected((0, 2)))
        np.testing.assert_array_equal(getattr(np, name)(t, axis=2), expected(2))


def test_no_axes_are_all_axes_as_dim_and_none_as_axis() -> None:
    t = nnmpi.tensor(X)
    assert t.sum(dim=()).shape == t.sum([]).shape == ()
    assert t.sum(axis=()).shape == X.shape


def test_the_gradient_of_a_spread_of_equals_is_zero() -> None:
    t = nnmpi.tensor(np.ones((2, 3)), requires_grad=True)
    t.std(axis=1).sum().backward()
    assert not t.grad.any()


def test_cumsum_without_an_axis_is_of_all_elements() -> None:
    t = nnmpi.tensor(X, requires_grad=True)
    y = t.cumsum()
    y[-1].backward()
    np.testing.assert_allclose(y.numpy(), X.cumsum())
    assert (t.grad == 1).all()


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

"""Functions that make, pad, sort and combine tensors, under PyTorch's names."""

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.programs import printed

import nnmpi


def test_tensors_of_one_value() -> None:
    assert nnmpi.zeros(2, 3).shape == nnmpi.ones((2, 3)).shape == nnmpi.full([2, 3], 1).shape
    assert nnmpi.zeros().shape == nnmpi.zeros(()).shape == ()
    assert nnmpi.full(2, 7).numpy().tolist() == [7, 7]
    types = (1, "int64"), (1.5, "float32"), (True, "bool"), (np.float64(2), "float64")
    assert nnmpi.zeros(1).dtype == nnmpi.ones(1).dtype == "float32"
    for value, dtype in types:
        assert nnmpi.full((2,), value).dtype == dtype
        assert nnmpi.full((2,), value, dtype="float16").dtype == "float16"
    leaf = nnmpi.ones(2, dtype="float64", requires_grad=True)
    (leaf * 3).sum().backward()
    assert leaf.grad.tolist() == [3, 3]


@needs_device
def test_tensors_of_one_value_on_a_device() -> None:
    for made in (
        nnmpi.zeros(2, on=DEVICE),
        nnmpi.ones(2, on=DEVICE),
        nnmpi.full(2, 1.0, on=DEVICE),
    ):
        assert type(made.array) is DEVICE.xp.ndarray


def test_names_of_types_are_those_that_arrays_have() -> None:
    t = nnmpi.zeros(2)
    assert t.dtype is nnmpi.float32 is nnmpi.float
    assert t.long().dtype is nnmpi.long is nnmpi.int64
    assert (t > 0).dtype is nnmpi.bool
    assert t.bfloat16().dtype is nnmpi.bfloat16
    assert nnmpi.nn.Linear(2, 2).bfloat16().weight.dtype is nnmpi.bfloat16
    assert {nnmpi.float32: "single", nnmpi.float64: "double"}[t.double().dtype] == "double"
    assert str(nnmpi.half) == "float16"


def test_bfloat16_is_known_by_its_name() -> None:
    program = "import nnmpi; print(nnmpi.nn.Linear(2, 2).to('bfloat16').weight.dtype)"
    assert printed(program) == "bfloat16"


def test_tensors_of_one_type() -> None:
    assert nnmpi.LongTensor([1, 2]).dtype == nnmpi.LongTensor(2, 3).dtype == "int64"
    assert nnmpi.FloatTensor(np.ones((2, 3))).dtype == "float32"
    assert (nnmpi.FloatTensor(2, 3).shape, nnmpi.FloatTensor().shape) == ((2, 3), (0,))
    assert nnmpi.FloatTensor(nnmpi.tensor([1.5])).tolist() == [1.5]
    assert isinstance(nnmpi.zeros(2), nnmpi.FloatTensor)
    assert not isinstance(nnmpi.zeros(2), nnmpi.LongTensor)
    assert not isinstance(np.zeros(2, "int64"), nnmpi.LongTensor)
    names = [nnmpi.zeros(2, dtype=d).type() for d in (nnmpi.float32, nnmpi.bool, nnmpi.uint8)]
    assert names == ["torch.FloatTensor", "torch.BoolTensor", "torch.ByteTensor"]
    assert nnmpi.zeros(2).type(nnmpi.LongTensor).type(nnmpi.float64).dtype == "float64"
    assert nnmpi.is_tensor(nnmpi.zeros(2))
    assert not nnmpi.is_tensor(np.zeros(2))


def test_leaves_and_results_are_told_apart() -> None:
    leaf = nnmpi.tensor([1.0], requires_grad=True)
    assert (leaf.is_leaf, leaf.grad_fn) == (True, None)
    assert not (leaf * 2).is_leaf
    assert (leaf * 2).grad_fn is not None
    assert (leaf.detach() * 2).is_leaf


def test_several_quantiles_are_along_a_new_axis_and_nan_spreads() -> None:
    t = nnmpi.tensor([[4.0, 1.0, 3.0], [float("nan"), 0.0, 1.0]])
    q = nnmpi.tensor([0.0, 0.25, 1.0])
    assert t.quantile(q, 0).shape == (3, 3)
    assert t.quantile(q, dim=1, keepdim=True).shape == (3, 2, 1)
    assert t[0].quantile(q).tolist() == [1, 2, 4]
    np.testing.assert_array_equal(t.quantile(0.5, 1).numpy(), [3, np.nan])


def test_sorting_keeps_ties_in_their_order_and_numbers_alone_are_sorted_too() -> None:
    values, indices = nnmpi.sort([3.0, 1.0, 3.0, 2.0], descending=True)
    assert (values.numpy().tolist(), indices.numpy().tolist()) == ([3, 3, 2, 1], [0, 2, 3, 1])
    assert nnmpi.sort(np.arange(6).reshape(2, 3), dim=0).indices.shape == (2, 3)
    alone = nnmpi.sort(nnmpi.tensor(5.0))
    assert (alone.values.item(), alone.indices.item()) == (5.0, 0)
    t = nnmpi.tensor([[1.0, 5.0, 3.0]], requires_grad=True)
    top = nnmpi.topk(t, 2)
    top.values.backward(np.array([[10.0, 20.0]]))
    assert t.grad.tolist() == [[0, 10, 20]]
    assert nnmpi.topk(t, 2, largest=False).indices.numpy().tolist() == [[0, 2]]
    assert nnmpi.topk(t, 0).values.shape == (1, 0)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_types_stay(dtype: str) -> None:
    t = nnmpi.tensor(np.linspace(-2, 2, 32).reshape(1, 2, 4, 4).astype(dtype), requires_grad=True)
    layers = [nnmpi.nn.ELU(), nnmpi.nn.Softplus(), nnmpi.nn.Dropout2d(), nnmpi.nn.Upsample(5)]
    layers += [nnmpi.nn.Upsample(5, mode="bilinear"), nnmpi.nn.InstanceNorm2d(2)]
    results = [layer(t) for layer in layers]
    results += [nnmpi.pad(t, (1, 1), "reflect"), nnmpi.pad(t, (1, -1), value=2.5)]
    results += [nnmpi.einsum("nchw,nchw->nc", t, t), nnmpi.sort(t).values, nnmpi.cumsum(t, dim=1)]
    results += [t.std(1), t.var((2, 3)), t.std()]
    for y in results:
        assert y.dtype == dtype
        t.grad = None
        y.sum().backward()
        assert t.grad.dtype == dtype


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_variances_in_16_bits(half: str) -> None:
    a = np.random.default_rng(0).standard_normal((3, 5)).astype("float32") * 10
    t, g = nnmpi.tensor(a).to(half).requires_grad_(), np.array([1, 1e3, 6e4], "float32")
    wide = nnmpi.tensor(t.detach().numpy().astype("float64"), requires_grad=True)
    for name in ("var", "std"):
        y, exact = getattr(t, name)(1), getattr(wide, name)(1)
        assert y.dtype == half
        np.testing.assert_allclose(y.float().numpy(), exact.numpy(), rtol=2.0**-8)
        factor = 2.0**-10 if half == "float16" else 1.0  # so that gradients are finite
        t.grad = wide.grad = None
        y.backward((g * factor).astype(y.dtype))
        exact.backward(g * factor)
        np.testing.assert_allclose(t.grad.float().numpy(), wide.grad.numpy(), rtol=2.0**-6)

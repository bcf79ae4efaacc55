"""Sequential and ModuleList as lists of layers, and the groups that run as one op."""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.device import ON_DEVICE

import nnmpi
from nnmpi import nn
from nnmpi.arrays.backend import CPU, Backend, to_host
from nnmpi.arrays.dtypes import named
from nnmpi.comm import Comm, thread_ranks


def some(*shape: int, dtype: str = "float32") -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def apart(model: nn.Module, x: nnmpi.Tensor) -> nnmpi.Tensor:
    """What the layers of a Sequential give one by one."""
    for layer in model.children():
        x = layer(x)
    return x


def kinds(model: Any) -> list[str]:
    return [type(layer).__name__ for layer in model]


def test_sequential_is_a_list_of_layers() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    assert model.append(nn.ReLU()).append(nn.Linear(4, 2)) is model
    assert (len(model), model[-1]) == (3, list(model)[2])
    x = some(2, 3)
    assert model(x).shape == (2, 2)
    model[1] = nn.Tanh()
    assert kinds(model) == ["Linear", "Tanh", "Linear"]
    np.testing.assert_array_equal(model(x).numpy(), apart(model, x).numpy())
    delattr(model, "1")
    np.testing.assert_array_equal(model(x).numpy(), apart(model, x).numpy())
    model.append(nn.Sigmoid())
    assert kinds(model) == ["Linear", "Linear", "Sigmoid"]
    assert len(nn.Sequential()) == 0


GROUPS: dict[str, tuple[Callable[[], list[nn.Module]], tuple[int, ...]]] = {
    "Linear ReLU": (lambda: [nn.Linear(6, 5), nn.ReLU()], (7, 6)),
    "MLP": (
        lambda: [nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 7, bias=False), nn.Linear(7, 3)],
        (9, 6),
    ),
    "MLP of more axes": (lambda: [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)], (2, 3, 6)),
    "Conv ReLU": (lambda: [nn.Conv2d(3, 4, 3, 2), nn.ReLU()], (2, 3, 9, 8)),
    "Conv pool": (lambda: [nn.Conv2d(3, 4, 2, bias=False), nn.MaxPool2d(2)], (2, 3, 9, 8)),
    "Conv ReLU pool": (lambda: _block("im2col", 3), (2, 3, 7, 8)),
    "Conv wide pool": (lambda: [nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2)], (2, 3, 9, 8)),
    "Conv ReLU dense pool": (lambda: [*_block("auto", 3)[:2], nn.MaxPool2d(2, 1)], (2, 3, 7, 8)),
    "Conv ReLU padded pool": (
        lambda: [*_block("auto", 3)[:2], nn.MaxPool2d(2, 2, 1)],
        (2, 3, 7, 8),
    ),
    "Conv tall pool": (lambda: [nn.Conv2d(3, 4, 3), nn.MaxPool2d((2, 1))], (2, 3, 9, 8)),
    "Conv dilated pool": (lambda: [nn.Conv2d(3, 4, 3), nn.MaxPool2d(2, 2, 0, 2)], (2, 3, 9, 8)),
    "Conv ceiled pool": (
        lambda: [nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)],
        (2, 3, 9, 9),
    ),
    "depthwise ReLU pool": (
        lambda: [nn.Conv2d(3, 6, 3, groups=3), nn.ReLU(), nn.MaxPool2d((2, 2), stride=(2, 2))],
        (2, 3, 9, 8),
    ),
    "groups ReLU pool": (
        lambda: [nn.Conv2d(6, 4, (3, 1), groups=2), nn.ReLU(), nn.MaxPool2d(2)],
        (2, 6, 9, 8),
    ),
    "dilated ReLU": (lambda: [nn.Conv2d(3, 4, 3, dilation=2), nn.ReLU()], (2, 3, 9, 8)),
    "Winograd ReLU pool": (lambda: _block("winograd2", 8), (2, 8, 7, 9)),
    "all": (lambda: [*_block("auto", 3), nn.Flatten(), nn.Linear(48, 4), nn.ReLU()], (2, 3, 8, 6)),
}


def _block(algorithm: str, channels: int) -> list[nn.Module]:
    conv = nn.Conv2d(channels, 4, 3, padding=1, algorithm=algorithm)
    return [conv, nn.ReLU(), nn.MaxPool2d(2)]


@pytest.mark.parametrize("whole_numbers", [True, False])
@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS)
def test_a_fused_group_gives_what_its_layers_give(group: Any, whole_numbers: bool) -> None:
    """With whole numbers every sum is exact, whatever its order: then all bits are equal."""
    make, shape = group
    model, x = nn.Sequential(*make()), some(*shape)
    x.requires_grad = True
    if whole_numbers:
        x = nnmpi.tensor(np.round(2 * x.numpy()), requires_grad=True)
        for p in model.parameters():
            p.array[...] = np.round(3 * p.array / np.abs(p.array).max())
    rtol = 0 if whole_numbers else 1e-5
    found = []
    for run in (model, lambda x: apart(model, x)):
        model.zero_grad()
        x.grad_array = None
        y = run(x)
        y.backward(np.round(4 * some(*y.shape).numpy()))
        found.append(
            [y.numpy(), x.grad_array.copy(), *(p.grad_array.copy() for p in model.parameters())]
        )
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * np.abs(b).max())
        assert b.any()


def test_an_mlp_of_a_large_batch_has_the_bits_of_its_layers() -> None:
    model, x = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)), some(128, 64)
    model.to("float32")
    found = []
    for run in (model, partial(apart, model)):
        model.zero_grad()
        y = run(x.astype("float32"))
        y.sum().backward()
        found.append([y.numpy(), *(p.grad_array.copy() for p in model.parameters())])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


class Residual(nn.Module):
    def __init__(self, n: int) -> None:
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(n))

    def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def test_a_module_list_is_part_of_the_model() -> None:
    model = Residual(2)
    assert names(model) == [f"layers.{i}.{name}" for i in (0, 1) for name in ("weight", "bias")]
    first, last = model.layers
    assert model.layers.append(nn.Linear(3, 3)) is model.layers
    model.layers[-1] = nn.Linear(3, 3, bias=False)
    assert (len(model.layers), model.layers[0], model.layers[1]) == (3, first, last)
    assert names(model)[4:] == ["layers.2.weight"]
    part = model.layers[:2]
    assert (type(part), list(part), last.path) == (nn.ModuleList, [first, last], "layers.1")
    model(some(2, 3)).sum().backward()
    assert all(p.has_grad for p in model.parameters())
    assert list(nn.ModuleList()) == []


class Sum(nn.Module):
    def forward(self, x: nnmpi.Tensor, y: nnmpi.Tensor, scale: float = 1.0) -> nnmpi.Tensor:
        return x + y * scale


def test_the_first_layer_may_take_several_inputs() -> None:
    x, model = some(2, 3), nn.Sequential(Sum(), nn.Linear(3, 4), nn.ReLU())
    for called, wanted in (
        (model(x, x), 2 * x),
        (model(x, y=x, scale=3.0), 4 * x),
        (model(y=x, x=x), 2 * x),
        (nn.Sequential(nn.Sequential(model[0]), *model[1:])(x, x), 2 * x),
    ):
        np.testing.assert_array_equal(called.array, model[1:](wanted).array)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'y'"):
        model(x)
    empty = nn.Sequential()
    assert empty(x) is x


@pytest.mark.one_in(2)
@pytest.mark.parametrize("on", [pytest.param(CPU, id="host"), ON_DEVICE])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_batch_norm_and_relu_as_one_op_give_the_bits_of_both(dtype: str, on: Backend) -> None:
    rng, found = np.random.default_rng(0), []
    x, g = rng.standard_normal((2, 4, 3, 5, 6))
    for is_one in (True, False):
        norm = nn.BatchNorm2d(3)
        model = nn.Sequential(norm, nn.ReLU()).to(named(dtype), on)
        sample = nnmpi.tensor(x, named(dtype), on=on, requires_grad=True)
        y = model(sample) if is_one else model[1](norm(sample))
        y.backward(on.asarray(g.astype(y.dtype)))
        kept = (y.array, sample.grad_array, norm.weight.grad_array, norm.bias.grad_array)
        found.append([to_host(a).tobytes() for a in kept])
    assert found[0] == found[1]


ROUNDINGS = {"float64": 1e-14, "float32": 2.0**-21, "float16": 2.0**-9, "bfloat16": 2.0**-6}
"""A few units in the last place, relative to the largest number."""


@pytest.mark.one_in(2)
@pytest.mark.parametrize("on", [pytest.param(CPU, id="host"), ON_DEVICE])
@pytest.mark.parametrize("dtype", ROUNDINGS)
def test_group_norm_and_silu_as_one_op_are_both_in_float64(dtype: str, on: Backend) -> None:
    """Some normalised values are 0 or so close that the sigmoid is a polynomial."""
    rng, found = np.random.default_rng(0), []
    x, g = (a.astype(dtype) for a in rng.standard_normal((2, 4, 6, 5, 7)))
    for kind, place in ((dtype, on), ("float64", CPU)):
        norm = nn.GroupNorm(2, 6)
        model = nn.Sequential(norm, nn.SiLU()).to(named(kind), place)
        norm.weight.data[...] = place.asarray(np.array([1, -1, 0.5, 0, 1e-3, 1e-5], kind))
        norm.bias.data[...] = place.asarray(np.array([0.5, 0, -1, 0, 0, 1e-4], kind))
        sample = nnmpi.tensor(x.astype(kind), named(kind), on=place, requires_grad=True)
        y = model(sample) if kind == dtype and place is on else model[1](norm(sample))
        y.backward(place.asarray(g.astype(kind)))
        kept = (y.array, sample.grad_array, norm.weight.grad_array, norm.bias.grad_array)
        found.append([to_host(a).astype("float64") for a in kept])
    for ours, exact in zip(*found, strict=True):
        np.testing.assert_allclose(ours, exact, atol=ROUNDINGS[dtype] * abs(exact).max(), rtol=0)


def test_layers_of_a_dictionary_keep_its_names() -> None:
    layers = OrderedDict(
        [("first", nn.Linear(2, 3)), ("act", nn.ReLU()), ("last", nn.Linear(3, 1))]
    )
    model = nn.Sequential(layers)
    assert names(model) == ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert model.last is model[-1] is layers["last"]
    assert names(model[1:]) == ["last.weight", "last.bias"]
    assert names(nn.Sequential(*model)[1:]) == ["2.weight", "2.bias"]
    assert names(nn.ModuleList(model)[1:]) == ["1.weight", "1.bias"]
    model.append(nn.Linear(1, 1))
    assert names(model)[-2:] == ["3.weight", "3.bias"]
    assert nn.Sequential(*model)(some(4, 2)).numpy().tolist() == model(some(4, 2)).numpy().tolist()


@pytest.mark.parametrize("layout", [{"dp": 2}, {"pp": 2, "micro_batches": 2}, {"tp": 2}])
def test_named_layers_train_on_ranks(layout: dict[str, int]) -> None:
    def build() -> nn.Module:
        return nn.Sequential({"in": nn.Linear(4, 8), "act": nn.Tanh(), "out": nn.Linear(8, 3)})

    def trained(comm: Comm, **layout: int) -> float:
        config = nnmpi.Config(
            data="iris", steps=3, batch_size=8, dtype="float64", quiet=True, seed=1, **layout
        )
        with nnmpi.Trainer(config, build=build, comm=comm) as trainer:
            return float(trainer.fit()["loss"])

    alone = thread_ranks.run(1, trained)[0]
    np.testing.assert_allclose(thread_ranks.run(2, partial(trained, **layout)), alone, 1e-10)

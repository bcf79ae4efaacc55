"""What users of PyTorch expect of modules: iterators, apply, containers, partial states."""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch, twins

import nnmpi
from nnmpi import nn, optim
from nnmpi.arrays import backend


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2)))


def backward(model: nn.Module) -> None:
    model(np.ones((4, 2), "float32")).sum().backward()


def test_parameters_are_an_iterator() -> None:
    model = net()
    iterator = model.parameters()
    assert next(iterator) is model[0].weight
    assert [*iterator] == [p for _, p in model.named_parameters()][1:]
    assert [*model.parameters(recurse=False)] == []
    assert [*model[0].parameters(recurse=False)] == [*model[0].parameters()]
    assert [name for name, _ in model[0].named_parameters("first")] == [
        "first.weight",
        "first.bias",
    ]
    backward(model)
    optim.clip_grad_norm(model.parameters(), 1.0)
    optim.SGD(model.parameters(), lr=0.1).step()


def test_freezing_and_training_again() -> None:
    model = net()
    assert model[0].requires_grad_(False) is model[0]
    backward(model)
    assert [p.has_grad for p in model.parameters()] == [False, False, True, True]
    model.requires_grad_()
    backward(model)
    assert all(p.has_grad for p in model.parameters())


def test_gradients_may_be_kept_as_zeros() -> None:
    model = net()
    model[0].requires_grad_(False)
    backward(model)
    model.zero_grad(set_to_none=False)
    assert [p.has_grad for p in model.parameters()] == [False, False, True, True]
    assert not any(p.grad.any() for p in model[1].parameters())
    model.zero_grad()
    assert not any(p.has_grad for p in model.parameters())


def test_apply_comes_to_children_first() -> None:
    model, seen = net(), []
    assert model.apply(lambda m: seen.append(m.path)) is model
    assert seen == ["0", "1.0", "1.1", "1", ""]


def test_children_are_yielded_once() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(relu, nn.Linear(2, 2), relu)
    assert [name for name, _ in model.named_children()] == ["0", "1"]
    assert [*model.children()] == [relu, model[1]]


def test_a_state_may_fit_in_part() -> None:
    model, head = net(), np.full((2, 3), 7.0, "float32")
    before = model[0].weight.data.copy()
    found = model.load_state_dict({"1.1.weight": head, "old": np.ones(2)}, strict=False)
    assert found.missing_keys == ["0.weight", "0.bias", "1.1.bias"]
    assert found.unexpected_keys == ["old"]
    np.testing.assert_array_equal(model[1][1].weight.data, head)
    np.testing.assert_array_equal(model[0].weight.data, before)
    assert model.load_state_dict(model.state_dict()) == ([], [])
    with refused("1.1.weight has shape (3,)", "(2, 3)", "leave these out of the state"):
        model.load_state_dict({"1.1.weight": np.ones(3)}, strict=False)
    with refused("only the model has 0.weight (3, 2), 0.bias (3,)", "only the state has old"):
        model.load_state_dict({"1.1.weight": head, "old": np.ones(2)})


def test_mistyped_names_of_a_state_stand_beside_those_of_the_model() -> None:
    state = net().state_dict()
    state["0.wieght"] = state.pop("0.weight")
    small = {name: value[:1] for name, value in state.items()}
    with refused(
        "fit: only the model has 0.weight (3, 2); only the state has 0.wieght; 0.bias has"
    ):
        net().load_state_dict(small)


def test_parts_are_registered_by_name() -> None:
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 3))
    model.register_module("tanh", nn.Tanh())
    model[0].register_parameter("scale", nn.Parameter([1.0]))
    model[0].register_parameter("bias", None)
    assert [*model.state_dict()] == ["first.weight", "first.scale"]
    assert model(np.ones((4, 2), "float32")).shape == (4, 3)
    for name, value in (("forward", nn.Tanh()), ("a.b", nn.Tanh()), ("", None), ("a", 3)):
        with refused(f"{name!r}"):
            model.add_module(name, value)
    with refused("'weight' is taken by another attribute"):
        model[0].add_module("weight", nn.Tanh())
    with refused("'a'", "the value must be a Parameter, not a Tanh"):
        model.register_parameter("a", nn.Tanh())


def test_types_and_devices_as_pytorch_has_them() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    weights = model[0].weight.numpy().copy()
    for convert, dtype in (
        (lambda: model.to("cpu"), "float32"),
        (lambda: model.to(backend.CPU, "float64"), "float64"),
        (model.half, "float16"),
        (model.double, "float64"),
        (lambda: model.to(device="cpu"), "float64"),
        (model.float, "float32"),
    ):
        assert convert() is model
        assert model[0].weight.dtype == model[1].running_mean.dtype == dtype
    np.testing.assert_allclose(model[0].weight.numpy(), weights, rtol=1e-3)


def test_each_number_of_gradients_is_limited() -> None:
    model = net()
    backward(model)
    before = [p.grad.copy() for p in model.parameters()]
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    for p, g in zip(model.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.grad, np.clip(g, -0.5, 0.5))
    assert max(abs(g).max() for g in before) > 0.5
    with refused("clip_value -1"):
        nn.utils.clip_grad_value_(model.parameters(), -1)


class Heads(nn.Module):
    def __init__(self) -> None:
        self.heads = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 3)})
        self.scales = nn.ParameterList([np.ones(2, "float32"), nn.Parameter([1.0, 2.0, 3.0])])

    def forward(self, x: nnmpi.Tensor, head: str) -> nnmpi.Tensor:
        scale = self.scales[["a", "b"].index(head)]
        y: nnmpi.Tensor = self.heads[head](x) * scale
        return y


def test_a_dictionary_of_modules() -> None:
    model = Heads()
    heads, names = model.heads, [name for name, _ in model.named_parameters()]
    of_heads = ["heads.a.weight", "heads.a.bias", "heads.b.weight", "heads.b.bias"]
    assert names == [*of_heads, "scales.0", "scales.1"]
    assert [*heads] == [*heads.keys()] == ["a", "b"]
    assert len(heads) == 2
    assert "a" in heads
    assert [*heads.items()] == [("a", heads["a"]), ("b", heads["b"])]
    heads["c"] = nn.Linear(2, 1)
    assert heads["c"].path == "heads.c"
    assert heads.pop("a") is not heads["b"]
    del heads["c"]
    assert [*heads.values()] == [heads["b"]]
    for missing in (lambda: heads["a"], lambda: heads.pop("a"), lambda: heads.__delitem__("items")):
        with pytest.raises(KeyError):
            missing()
    for key in ("items", "training", "a.b", ""):
        with refused("ModuleDict", repr(key), "choose another"):
            heads[key] = nn.ReLU()
    with refused("ModuleDict['x']", "function", "Module"):
        heads["x"] = lambda x: x
    twin = copy.deepcopy(model)
    assert twin.heads["b"].path == "heads.b"
    assert model(np.ones((1, 2), "float32"), "b").shape == (1, 3)


def test_a_list_of_parameters() -> None:
    scales = Heads().scales
    scales.append(np.zeros((2, 2)))
    assert [p.shape for p in scales] == [(2,), (3,), (2, 2)]
    assert repr(scales) == "ParameterList((2,), (3,), (2, 2))"
    scales[0] = nn.Parameter([5.0])
    scales[-1] = scales[1]
    assert scales[0].item() == 5
    assert scales[2] is scales[1]
    assert [name for name, _ in scales.named_parameters()] == ["0", "1"]
    with pytest.raises(IndexError):
        scales[3]


def test_lists_of_layers_grow() -> None:
    layers = nn.ModuleList([nn.ReLU()]).extend([nn.Tanh(), nn.SiLU()])
    assert [type(m) for m in layers] == [nn.ReLU, nn.Tanh, nn.SiLU]


def of_heads(nn: Any) -> Any:
    m = nn.Module()
    m.heads = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 3)})
    m.scales = nn.ParameterList([nn.Linear(2, 2).weight, nn.Linear(2, 3).weight])
    return m


def in_order(nn: Any) -> Any:
    return nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh(), nn.Linear(3, 2)))


@needs_torch
@pytest.mark.parametrize("make", [of_heads, in_order])
def test_states_come_from_pytorch_and_go_back(make: Callable[[Any], Any]) -> None:
    ours, theirs = twins(make)
    back = {name: pytorch().from_numpy(v.numpy()) for name, v in ours.state_dict().items()}
    assert str(theirs.load_state_dict(back)) == "<All keys matched successfully>"

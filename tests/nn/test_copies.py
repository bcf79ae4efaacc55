"""Copies and pickles of models, of parts of them and of their optimizers."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn, optim
from nnmpi.nn.models import digits_cnn
from nnmpi.optim.rules import MORE_OPTIMIZERS


def some(*shape: int, dtype: str = "float32") -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(0).standard_normal(shape).astype(dtype))


def names(module: nn.Module) -> list[str]:
    return [name for name, _ in module.named_parameters()]


def pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


DUPLICATES: dict[str, Callable[[Any], Any]] = {"deepcopy": copy.deepcopy, "pickle": pickled}
both = pytest.mark.parametrize("duplicate", DUPLICATES.values(), ids=DUPLICATES)


def small(seed: int = 0) -> nn.Sequential:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Dropout(0.5))
    model.seed = seed
    return model


def same(a: nn.Module, b: nn.Module) -> None:
    for one, other in zip(a.state_dict().items(), b.state_dict().items(), strict=True):
        assert one[0] == other[0]
        np.testing.assert_array_equal(one[1], other[1])


def test_a_deep_copy_is_a_model_of_its_own() -> None:
    model, x = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3)), some(2, 3)
    model[2].weight = model[0].weight
    y = model(x).numpy()
    optim.SGD(model.parameters(), lr=0.1)
    twin = copy.deepcopy(model)
    twin[0].weight.array *= 0
    assert names(twin) == names(model)
    assert [p.place for p in twin.parameters()] == [p.place for p in model.parameters()]
    assert {m.root for m in twin.modules()} == {twin}
    np.testing.assert_array_equal(model(x).numpy(), y)
    np.testing.assert_array_equal(twin(x).numpy(), np.tile(twin[2].bias.array, (2, 1)))


@both
def test_a_model_keeps_its_values_gradients_and_places(duplicate: Callable[[Any], Any]) -> None:
    model, x = digits_cnn(), some(3, 1, 8, 8)
    model(x).sum().backward()
    model[0].weight.requires_grad = False
    twin = duplicate(model)
    same(twin, model)
    assert [m.path for m in twin.modules()] == [m.path for m in model.modules()]
    assert [p.place for p in twin.parameters()] == [p.place for p in model.parameters()]
    assert {m.root for m in twin.modules()} == {twin}
    assert not twin[0].weight.requires_grad
    for p, q in zip(twin.parameters(), model.parameters(), strict=True):
        np.testing.assert_array_equal(p.grad_array, q.grad_array)
        assert p.array.strides == q.array.strides
        assert not np.shares_memory(p.array, q.array)
    np.testing.assert_array_equal(twin(x).numpy(), model(x).numpy())  # dropout included
    same(twin, model)


@both
@pytest.mark.parametrize("drawn", [True, False])
def test_a_part_leaves_the_model_behind_and_keeps_its_values(
    duplicate: Callable[[Any], Any], drawn: bool
) -> None:
    model = small(seed=7)
    if drawn:
        model(some(2, 3))
    twin = duplicate(model[2])
    assert (twin.root, twin.path) == (twin, "")
    np.testing.assert_array_equal(twin.weight.array, small(seed=7)[2].weight.array)
    np.testing.assert_array_equal(duplicate(model[2].bias).array, model[2].bias.array)
    assert model[2].root is model


@both
def test_parts_find_their_model_in_whatever_order_they_are_copied(
    duplicate: Callable[[Any], Any],
) -> None:
    model = small()
    part = model[1:]
    for order in ((model, part), (part, model), (model[2], part, model)):
        twins = dict(zip((id(m) for m in order), duplicate(order), strict=True))
        whole, slice_ = twins[id(model)], twins[id(part)]
        assert slice_[1] is whole[2]
        assert [m.path for m in whole.modules()] == ["", "0", "1", "2", "3"]
        assert slice_[1].weight.place.path == "2.weight"
    alone = duplicate(part)
    assert [m.path for m in alone.modules()] == ["", "1", "2", "3"]
    assert alone[1].weight.place.path == "2.weight"
    assert {m.root for m in alone.modules()} == {alone}


@both
@pytest.mark.parametrize("name", [*optim.OPTIMIZERS, *MORE_OPTIMIZERS.where])
@pytest.mark.parametrize("swapped", [False, True])
def test_a_copied_optimizer_trains_its_copied_model(
    name: str, duplicate: Callable[[Any], Any], swapped: bool
) -> None:
    model, x = small(), some(5, 3)
    opt = optim.rules.optimizer_named(name)(model.parameters(), lr=0.1)

    def step(model: nn.Module, opt: optim.Optimizer) -> None:
        opt.zero_grad()
        (model(x) ** 2).sum().backward()
        opt.step()

    step(model, opt)
    if swapped:
        other, twin = duplicate((opt, model))
    else:
        twin, other = duplicate((model, opt))
    same(twin, model)
    before = copy.deepcopy(model.state_dict())
    for _ in range(3):
        step(twin, other)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])
    for _ in range(3):
        step(model, opt)
    same(twin, model)
    assert len({p.store for p in twin.parameters()}) == 1

"""nn.Branches: modules beside each other, on one rank."""

import numpy as np
import pytest
from helpers.training.branch_models import BRANCH_MODELS

import nnmpi
from nnmpi import nn


def samples(*shape: int) -> nnmpi.Tensor:
    return nnmpi.tensor(np.random.default_rng(3).standard_normal(shape).astype("float32"))


def two(join: str, **options: int) -> nn.Branches:
    return nn.Branches({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)}, join, **options)


def test_each_join_is_numpy_s() -> None:
    x = samples(5, 4)
    for join, expected in (
        ("sum", lambda a, b: a + b),
        ("mean", lambda a, b: (a + b) / 2),
        ("concat", lambda a, b: np.concatenate([a, b], axis=-1)),
        ("stack", lambda a, b: np.stack([a, b], axis=-1)),
    ):
        model = two(join)
        a, b = (branch(x).numpy() for branch in model.values())
        np.testing.assert_allclose(model(x).numpy(), expected(a, b), rtol=1e-6)
    assert two("stack", dim=1)(x).shape == (5, 2, 3)


def test_names_are_those_given() -> None:
    assert [name for name, _ in nn.Sequential(two("sum")).named_parameters()] == [
        *("0.a.weight", "0.a.bias", "0.b.weight", "0.b.bias")
    ]
    assert "join='concat', dim=-1" in repr(two("concat"))


def test_branches_with_inputs_of_their_own() -> None:
    model = nn.Branches({"user": nn.Linear(4, 3), "item": nn.Linear(2, 3)})
    x = {"item": samples(5, 2), "user": samples(5, 4)}
    y = model(x)
    expected = model["user"](x["user"]).numpy() + model["item"](x["item"]).numpy()
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(model(**x).numpy(), expected)


@pytest.mark.parametrize("name", BRANCH_MODELS)
def test_the_models_of_the_table_train(name: str) -> None:
    """So a row of the table compares gradients that are there."""
    model = BRANCH_MODELS[name]()
    nn.CrossEntropyLoss()(model(samples(3, 1, 8, 8)), np.array([1, 2, 0])).backward()
    assert all(p.grad is not None and abs(p.grad).max() > 0 for p in model.parameters())

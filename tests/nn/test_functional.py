"""nnmpi.nn.functional: signatures are PyTorch's; tests/outside compares values and gradients."""

import inspect
from contextvars import copy_context

import numpy as np
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
import nnmpi.nn.functional as F
from nnmpi import nn
from nnmpi.nn.seeding import construction

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 6, 6))  # images
W = RNG.standard_normal((6, 4, 3, 3)) / 6
ROWS, LABELS = X[:, 0, 0], np.array([1, 5, 0])


@needs_torch
def test_arguments_have_pytorchs_places_and_defaults() -> None:
    theirs = pytorch().nn.functional
    compared = 0
    for name, function in vars(F).items():
        try:
            expected = inspect.signature(getattr(theirs, name)).parameters
        except (AttributeError, TypeError, ValueError):  # no function of both; or written in C++
            continue
        if "input" not in expected:  # *args of two functions
            continue
        compared += 1
        for i, (key, p) in enumerate(inspect.signature(function).parameters.items()):
            assert key in expected, (name, key)
            assert p.default == expected[key].default, (name, key)
            if p.kind is p.POSITIONAL_OR_KEYWORD:
                assert [*expected].index(key) == i, (name, key)
    assert compared > 20


def test_one_hot() -> None:
    assert F.one_hot(nnmpi.tensor([[1], [0]]), 3).numpy().tolist() == [[[0, 1, 0]], [[1, 0, 0]]]
    y = F.one_hot(np.array([0, 2]))
    assert (y.dtype, y.shape) == ("int64", (2, 3))


def test_a_function_does_not_count_as_a_module() -> None:
    before = construction.get()
    F.max_pool2d(X, 2)
    F.cross_entropy(ROWS, LABELS)
    assert construction.get() == before


def test_manual_seed_is_seeded_from_there_on() -> None:
    def weights() -> list[np.ndarray]:
        nnmpi.manual_seed(7)
        return [nn.Linear(2, 3).weight.numpy(), nn.Linear(2, 3).weight.numpy()]

    found = copy_context().run(weights)
    with nnmpi.seeded(7):
        expected = [nn.Linear(2, 3).weight.numpy(), nn.Linear(2, 3).weight.numpy()]
    np.testing.assert_array_equal(found, expected)
    assert not np.array_equal(*found)

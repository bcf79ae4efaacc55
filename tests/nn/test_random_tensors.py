"""Tensors that PyTorch's functions make: of sizes, of numbers, and at random."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.device import DEVICE, needs_device
from helpers.ops.oracle import needs_torch, same_as_pytorch

import nnmpi
from nnmpi import nn
from nnmpi.comm import thread_ranks

MADE: dict[str, Callable[[Any], Any]] = {
    "arange": lambda t: t.arange(5),
    "arange of floats": lambda t: t.arange(0, 1, 0.25),
    "arange backwards": lambda t: t.arange(start=5, end=0, step=-2, dtype=t.float64),
    "linspace": lambda t: t.linspace(-1, 1, steps=5),
    "eye": lambda t: t.eye(2, 3),
    "empty": lambda t: t.empty(2, 3).shape and t.zeros((2, 3)),
    "like": lambda t: t.zeros_like(t.ones(2, dtype=t.long)) + t.ones_like(t.zeros(2, dtype=t.long)),
    "full like": lambda t: t.full_like(t.zeros(2, 1), 7.5),
    "tril": lambda t: t.tril(t.ones(2, 3, 4), diagonal=1),
    "triu of infinities": lambda t: t.triu(t.full((3, 3), float("-inf")), diagonal=1),
    "tril of booleans": lambda t: t.tril(t.ones(3, 3).bool(), -1),
    "pow of a number": lambda t: t.pow(2.0, t.arange(3).float()),
}


@needs_torch
@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_what_is_made_is_pytorchs(make: Any) -> None:
    same_as_pytorch(make, rtol=0, atol=0)


@needs_torch
def test_a_triangle_has_pytorchs_gradient() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 3))
    same_as_pytorch(lambda n, x: (n.tril(x), n.triu(x, 1)), x)


RANDOM: dict[str, Callable[[], Any]] = {
    "rand": lambda: nnmpi.rand(50, 20),
    "randn": lambda: nnmpi.randn((50, 20), dtype="float64"),
    "randint": lambda: nnmpi.randint(-3, 3, (1000,)),
    "randperm": lambda: nnmpi.randperm(20),
    "rand_like": lambda: nnmpi.rand_like(nnmpi.zeros(20)),
    "randn_like": lambda: nnmpi.randn_like(nnmpi.zeros(20)),
    "multinomial": lambda: nnmpi.multinomial(nnmpi.ones(2, 10), 5),
    "multinomial again": lambda: nnmpi.multinomial(nnmpi.ones(10), 30, replacement=True),
}


@pytest.mark.parametrize("draw", RANDOM.values(), ids=RANDOM)
def test_numbers_follow_from_the_seed_alone_and_are_those_of_all_ranks(draw: Any) -> None:
    def drawn(comm: Any = None) -> list[Any]:
        with nnmpi.seeded(7):
            return [draw().tolist(), draw().tolist(), float(nn.Linear(2, 2).weight[0, 0])]

    first, second, weight = drawn()
    np.random.seed(0)  # noqa: NPY002 - another generator
    assert thread_ranks.run(2, drawn) == [[first, second, weight]] * 2
    assert first != second
    with nnmpi.seeded(7):  # weights are the same, whatever was drawn before
        assert float(nn.Linear(2, 2).weight[0, 0]) == weight
    with nnmpi.seeded(8):
        assert draw().tolist() != first


def test_numbers_have_their_distribution() -> None:
    with nnmpi.seeded(0):
        u, z = nnmpi.rand(100, 100), nnmpi.randn(100, 100)
        k = nnmpi.randint(5, (10000,))
        coarse = nnmpi.rand(100, 100, dtype="float16")
        p = nnmpi.tensor([[1.0, 0.0, 3.0], [0.0, 2.0, 2.0]])
        many = nnmpi.multinomial(p, 20000, replacement=True)
        two = nnmpi.multinomial(p, 2)
        first = [nnmpi.multinomial(p[0], 1).item() for _ in range(400)]
    assert (u.dtype, z.dtype, k.dtype, many.dtype) == ("float32", "float32", "int64", "int64")
    assert abs(float(u.mean()) - 0.5) < 0.01
    assert 0 < float(u.min()) < float(u.max()) < 1
    assert float(coarse.max()) < 1
    assert abs(float(z.mean())) < 0.05
    assert abs(float(z.std()) - 1) < 0.05
    assert np.abs(np.bincount(k.numpy()) / 10000 - 0.2).max() < 0.02
    for row, shares in zip(many.numpy(), ((0.25, 0, 0.75), (0, 0.5, 0.5)), strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 20000, shares, atol=0.02)
    assert [sorted(row) for row in two.tolist()] == [[0, 2], [1, 2]]
    assert abs(first.count(2) / 400 - 0.75) < 0.08
    assert sorted(nnmpi.randperm(9).tolist()) == list(range(9))
    assert max(nnmpi.randint(3, size=(50,)).tolist()) == 2


@needs_device
def test_a_device_has_the_same_numbers() -> None:
    for draw in (nnmpi.randn, nnmpi.rand):
        tensors = []
        for device in ("cpu", DEVICE):
            with nnmpi.seeded(1):
                tensors.append(draw(3, 4, device=device))
        assert type(tensors[1].array) is DEVICE.xp.ndarray
        assert tensors[0].tolist() == tensors[1].tolist()
        assert draw(2, requires_grad=True).requires_grad


class Noisy(nn.Module):
    """A layer that adds numbers which no sample has."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        return y + nnmpi.randn_like(y)


def test_numbers_within_a_step_of_a_trainer_are_refused_with_what_to_write() -> None:
    assert Noisy()(nnmpi.zeros(2, 4)).shape == (2, 3)
    with (
        pytest.raises(ValueError, match=r"nnmpi.random\(self, shape, like=x\)"),
        nnmpi.Trainer(nnmpi.Config(data="iris", epochs=1), Noisy) as trainer,
    ):
        trainer.fit()


def test_integers_lie_between_bounds_of_any_kind() -> None:
    for low, high in ((0, np.int64(3)), (np.int32(-2), 1), (5, nnmpi.tensor(8)), (-(2**31), 2**31)):
        with nnmpi.seeded(0):
            drawn = nnmpi.randint(low, high, (200,)).numpy()
        assert drawn.dtype == "int64"
        assert int(low) <= drawn.min() < drawn.max() < int(high)
        if int(high) - int(low) == 3:
            assert len(set(drawn.tolist())) == 3

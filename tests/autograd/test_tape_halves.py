"""A backward pass in two halves, first the gradient of one tensor and then all others:
the bits of an undivided pass.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.in_pass import in_pass
from helpers.ops.opcases_all import CASES, evaluated, is_leaf, single, weights

import nnmpi
from nnmpi import nn
from nnmpi.autograd import Tensor, no_grad
from nnmpi.nn.models import MODELS, mlp

SEVERAL = [
    name
    for name, case in CASES.items()
    if case.has_gradient and sum(map(is_leaf, case.arrays(name))) > 1
]
"""Cases whose value depends on several leaves."""
TYPES: dict[str, Callable[[np.ndarray], Any]] = {"float64": np.copy, "float32": single}
floats = pytest.mark.parametrize("dtype", ["float32", "float64"])


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, "float64"), requires_grad=True)


def bits(tensors: list[Tensor]) -> list[Any]:
    """Their gradients, comparable: NaN included."""
    return [
        None if t.grad_array is None else (t.grad_array.dtype, t.grad_array.tobytes())
        for t in tensors
    ]


@pytest.mark.one_in(4)
@pytest.mark.parametrize("change", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize("name", SEVERAL)
def test_two_halves_of_every_op_give_the_bits_of_the_whole(name, change):
    y, whole = evaluated(name, change)
    y.backward(weights(y.shape))
    for k in range(len(whole)):
        y, leaves = evaluated(name, change)
        rest = y.backward(weights(y.shape), until=leaves[k])
        assert [t.grad_array is None for t in leaves] == [i != k for i in range(len(leaves))]
        first = bits([leaves[k]])
        rest.finish()
        assert bits(leaves) == bits(whole)
        assert bits([leaves[k]]) == first


# ---- models


class Branchy(nn.Module):
    """Branches of unequal depth, a weight used three times, a skip connection, a constant."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight = self.a.weight
        self.norm, self.last = nn.LayerNorm(5), nn.Linear(10, 3)
        self.scale = nn.Parameter(np.linspace(0.5, 1.5, 5))

    def forward(self, x: Tensor) -> Tensor:
        h = nnmpi.tanh(self.a(x))
        g = self.norm(self.b(h) * self.scale + x) / (1 + self.scale * self.scale)
        h = self.a(h + g * 0.5) - h
        return self.last(nnmpi.concatenate([h, nnmpi.sigmoid(g)], axis=1))


def batch_norm_first() -> nn.Module:
    return nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 4), nn.BatchNorm1d(4, affine=False))


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(12, 7, 5, 3), (6, 12)),
    "digits-cnn": (MODELS["digits-cnn"], (9, 1, 8, 8)),
    "mnist-cnn": (MODELS["mnist-cnn"], (3, 1, 28, 28)),
    "branches": (Branchy, (4, 5)),
    "BatchNorm first": (batch_norm_first, (5, 6)),
}
nets = pytest.mark.parametrize(("make", "shape"), NETS.values(), ids=NETS)


def forward(make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: str) -> Any:
    """The loss of a new model, its input, and its parameters."""
    model = make().to(dtype)
    data = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    x = nnmpi.tensor(data, requires_grad=True)
    loss = nn.CrossEntropyLoss()(model(x), np.arange(shape[0]) % 3)
    return loss, x, *model.parameters()


@pytest.mark.parametrize("until", ["the input", "a parameter", "both"])
@floats
@nets
def test_two_halves_of_a_model_give_the_bits_of_the_whole(make, shape, dtype, until):
    """Also until a parameter that several layers share."""
    loss, *whole = forward(make, shape, dtype)
    loss.backward()
    expected = bits(whole)
    places = {
        "the input": [(0,)],
        "a parameter": [(k,) for k in range(1, len(whole))],
        "both": [(0, k, 0) for k in range(1, len(whole))],
    }
    for first in places[until]:
        loss, *leaves = forward(make, shape, dtype)
        wanted, seen = [leaves[k] for k in first], list[Tensor]()
        rest = loss.backward(until=wanted[0] if len(wanted) == 1 else wanted, on_leaf=seen.append)
        assert [id(t) for t in seen] == [id(t) for t in wanted[:2]]
        for k, leaf in enumerate(leaves):
            assert bits([leaf]) == (expected[k : k + 1] if k in first else [None])
        rest.finish()
        assert bits(leaves) == expected


def test_micro_batches_whose_second_halves_come_late_add_up_in_their_order():
    model, xs = mlp(5, 4, 3), [np.random.default_rng(m).standard_normal((6, 5)) for m in range(3)]
    model.to("float64")

    def losses() -> list[Tensor]:
        return [model(nnmpi.tensor(x, requires_grad=True)).sum() for x in xs]

    for loss in losses():
        loss.backward()
    expected = bits(model.parameters())
    model.zero_grad()
    inputs = [nnmpi.tensor(x, requires_grad=True) for x in xs]
    rests = [model(x).sum().backward(until=x) for x in inputs]
    assert not any(p.has_grad for p in model.parameters())
    for rest in rests:
        rest.finish()
    assert bits(model.parameters()) == expected


# ---- where it stops


def test_until_a_tensor_in_the_middle():
    """Its own gradient comes first; what lies under it waits, as does what lies beside it."""
    w, v, x = leaf(2, 3), leaf(5, 7), leaf(0.1, 0.7)

    def graph() -> tuple[Tensor, Tensor]:
        h = x * w
        return h, (nnmpi.exp(h) * v + h * w + v).sum()

    graph()[1].backward()
    expected = bits([w, v, x])
    w.grad_array = v.grad_array = x.grad_array = None
    h, y = graph()
    rest = y.backward(until=h)
    assert np.array_equal(h.grad_array, np.exp(h.array) * v.array + w.array)
    assert bits([w, v, x]) == [None] * 3
    h.grad_array[...] = np.nan  # memory of its own
    rest.finish()
    assert bits([w, v, x]) == expected


def test_until_a_tensor_that_does_not_lead_to_the_root_is_refused():
    a, b, constant = leaf(1, 2), leaf(3, 4, 5), Tensor(np.ones(2))
    y = (a * constant).sum()
    for stranger in (b, constant, a * 2, a.detach(), y * 2):
        with pytest.raises(ValueError, match=r"reaches the tensor `until` \(of shape"):
            y.backward(until=stranger)
    with pytest.raises(ValueError, match=r"the tensor `until` \(of shape \(3,\)\)"):
        a.backward(np.ones(2), until=b)
    with no_grad():
        cut = a * 3
    with pytest.raises(ValueError, match="no_grad"):
        (a * cut).sum().backward(until=cut)
    y.backward()
    assert a.grad_array.tolist() == [1, 1]


# ---- statistics over several ranks


class Counting:
    """Batch statistics of one rank that count their collectives."""

    def __init__(self) -> None:
        self.totals = 0

    def moments(self, local: Any, track: Callable[[Any], None]) -> Any:
        track(local)
        return local

    def sum(self, sums: np.ndarray) -> np.ndarray:
        self.totals += 1
        return sums


@pytest.mark.parametrize("which", ["input", "weight"])
def test_sums_over_ranks_are_taken_once_in_the_half_of_the_input(which):
    layer, stats = nn.BatchNorm1d(3), Counting()
    x = nnmpi.tensor(np.random.default_rng(0).standard_normal((4, 3)), requires_grad=True)
    with in_pass(0, None, stats):
        y = layer.to("float64")(x)
    rest = y.backward(weights(y.shape), until=x if which == "input" else layer.weight)
    assert stats.totals == (which == "input")
    rest.finish()
    assert stats.totals == 1


# ---- graphs that are used up or written to


def test_a_half_uses_up_what_it_visits_and_runs_once():
    a, b = leaf(1, 2), leaf(3, 4)
    product, seed = a * b, np.ones(())
    y = product.sum()
    rest = y.backward(seed, until=a)
    seed[...] = 9.0  # its memory is the caller's
    of_halves = product.sum()  # this node's vjp to b is still to run
    for again in (y.backward, lambda: y.backward(until=a), (y * 2).backward, of_halves.backward):
        with pytest.raises(RuntimeError, match="used up"):
            again()
    with pytest.raises(RuntimeError, match="used up"):
        (y * 2).backward(until=a)
    rest.finish()
    with pytest.raises(RuntimeError, match="finished already"):
        rest.finish()
    assert (a.grad_array.tolist(), b.grad_array.tolist()) == ([3, 4], [1, 2])


def test_a_side_that_is_used_up_between_the_halves_is_refused():
    a, b = leaf(1, 2), leaf(3, 4)
    side = b * 2
    rest = (a * side).sum().backward(until=a)
    side.sum().backward()
    with pytest.raises(RuntimeError, match="used up"):
        rest.finish()


@pytest.mark.parametrize("which", ["a", "b", "h"])
def test_a_write_between_the_halves_is_detected(which):
    a, b = leaf(1, 2), leaf(3, 4)
    h = a * b
    rest = (h * b).sum().backward(until=a)
    with no_grad():
        {"a": a, "b": b, "h": h}[which][0] = 9.0
    with pytest.raises(RuntimeError, match="written in place"):
        rest.finish()

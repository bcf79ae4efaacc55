"""The tape: each leaf gets its whole gradient, in an order that is always the same."""

import gc
import weakref

import numpy as np
import pytest

import nnmpi
from nnmpi.arrays.kernels import Result
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.tape import begun


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, "float64"), requires_grad=True)


def grads(*leaves: Tensor) -> list:
    return [None if t.grad is None else t.grad.tolist() for t in leaves]


# ---- sums over uses and over passes


def test_the_same_tensor_in_several_places():
    b = leaf(1, 2)
    nnmpi.concatenate([b, b, b * 2]).sum().backward()
    assert grads(b) == [[4.0, 4.0]]


def test_diamonds_are_visited_once():
    visits = []

    def watched(a: np.ndarray) -> Result:
        return Result(a * 2, (lambda g, out: visits.append(g.tolist()) or g * 2,))

    a = leaf(1)
    top = apply(watched, a)
    left, right = top * 3, top * 5
    (left * right + top).sum().backward()  # 15 top^2 + top, top = 2
    assert grads(a) == [[2 * 61.0]]
    assert visits == [[61.0]]


# ---- the hook


def net(x: Tensor, w: list[Tensor]) -> Tensor:
    """w[0] is used at both ends, w[1] twice in the middle, w[2] once; so is h, a value, twice."""
    h = (x * w[0]).sum() + w[2]
    return ((h * w[1] + w[1]) * h * w[0]).sum()


def test_on_leaf_is_called_once_and_only_when_the_gradient_is_final():
    w = [leaf(2, 3), leaf(5, 7), leaf(11, 13)]
    seen = []
    net(leaf(1, -1).detach(), w).backward(on_leaf=lambda t: seen.append((t, t.grad.copy())))
    assert {id(t) for t, _ in seen} == {id(t) for t in w}
    assert len(seen) == len(w)
    for t, then in seen:
        assert then.tolist() == t.grad.tolist()


def test_on_leaf_counts_only_the_uses_under_this_root():
    a, b = leaf(1), leaf(2)
    used, unused = (a * b).sum(), (a * 5).sum()
    calls = []
    used.backward(on_leaf=calls.append)
    assert len(calls) == 2
    unused.backward(on_leaf=calls.append)
    assert calls[2:] == [a]
    assert grads(a, b) == [[7.0], [1.0]]


def test_a_pass_in_parts_stops_where_the_gradients_of_a_part_are_final() -> None:
    wanted, w = [leaf(2, 3), leaf(5, 7), leaf(11, 13)], [leaf(2, 3), leaf(5, 7), leaf(11, 13)]
    net(leaf(1, -1).detach(), wanted).backward()
    unused, root = leaf(1), net(leaf(1, -1).detach(), w)
    parts = begun(root, np.array(1.0)).in_parts([[w[1]], [unused], [w[0], w[2]]])
    for final in ([1], [1], [0, 1, 2]):
        next(parts, None)
        for k in final:
            assert grads(w[k]) == grads(wanted[k])
    assert next(parts, None) is None
    rest = begun(net(leaf(1, -1).detach(), w), np.array(1.0))
    assert {*rest.leaves()} == {*w}


# ---- depth and memory


def alive_after(retain_graph: bool) -> int:
    """How many of ten arrays that only the graph holds outlive the backward pass."""

    class Kept(np.ndarray):
        """An array that can be watched: NumPy's own cannot."""

    watched = []

    def keeps(a: np.ndarray) -> Result:
        kept = a.copy().view(Kept)
        watched.append(weakref.ref(kept))
        return Result(a * 1, (lambda g, out: g * np.asarray(kept),))

    a = leaf(1, 2)
    y = a
    for _ in range(10):
        y = apply(keeps, y)
    root = y.sum()
    assert sum(ref() is not None for ref in watched) == 10
    root.backward(retain_graph=retain_graph)
    alive = sum(ref() is not None for ref in watched)
    assert root.shape == ()  # the root itself is still here
    return alive


def test_a_backward_pass_frees_the_graph():
    gc.disable()  # without the collector's help
    try:
        assert alive_after(retain_graph=False) == 0
        assert alive_after(retain_graph=True) == 10
    finally:
        gc.enable()


# ---- seeds, and graphs that are used up


def test_only_a_scalar_has_a_gradient_by_itself():
    a = leaf(1, 2)
    with pytest.raises(ValueError, match=r"shape \(2,\) is not a scalar"):
        (a * 2).backward()
    for scalar in ((a * 2).sum(), (a * 2)[:1], (a * 2).sum().reshape(1, 1)):
        scalar.backward()
    assert grads(a) == [[6.0, 4.0]]


def test_a_seed_has_the_shape_of_the_value():
    a = leaf(1, 2)
    with pytest.raises(ValueError, match=r"shape \(3,\) for a tensor of shape \(2,\)"):
        (a * 2).backward(np.ones(3))
    with pytest.raises(ValueError, match=r"shape \(\) for a tensor of shape \(2,\)"):
        (a * 2).backward(np.float64(1))
    for seed in (np.array([1.0, 10.0]), [1, 10], Tensor(np.array([1.0, 10.0], "float32"))):
        a.grad = None
        (a * 2).backward(seed)
        assert grads(a) == [[2.0, 20.0]]


def test_backward_needs_a_tensor_that_requires_a_gradient():
    with pytest.raises(RuntimeError, match="not computed from one that requires a gradient"):
        Tensor(np.ones(1)).sum().backward()


def test_a_graph_is_used_up_by_backward_unless_it_is_retained():
    a = leaf(1, 2)
    y, left, right = (a * a).sum(), a * 2, a * 3
    y.backward(retain_graph=True)
    y.backward(retain_graph=True)
    y.backward()
    assert grads(a) == [[6.0, 12.0]]
    (left + right).sum().backward()
    for again in (y, y * 2, (left * right).sum()):
        with pytest.raises(RuntimeError, match=r"used up.*retain_graph=True"):
            again.backward(on_leaf=lambda t: None)
    assert grads(a) == [[11.0, 17.0]]

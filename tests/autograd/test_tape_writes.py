"""Where nothing is recorded, and writes in place that a backward pass must notice."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import nnmpi
from nnmpi import nn
from nnmpi.autograd import Tensor, no_grad


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, "float64"), requires_grad=True)


# ---- modes


MODES: dict[str, tuple[Callable[[], Any], bool]] = {
    "no_grad": (no_grad, False),
    "inference_mode": (nnmpi.inference_mode, False),
    "set_grad_enabled(False)": (lambda: nnmpi.set_grad_enabled(False), False),
    "enable_grad": (nnmpi.enable_grad, True),
    "set_grad_enabled(True)": (lambda: nnmpi.set_grad_enabled(True), True),
}

BARE = no_grad, nnmpi.inference_mode, nnmpi.enable_grad
"""Modes that decorate without parentheses too."""


@pytest.mark.parametrize(("mode", "records"), MODES.values(), ids=MODES)
def test_modes_switch_recording_on_and_off(mode: Callable[[], Any], records: bool) -> None:
    def double(a: Tensor, depth: int = 2) -> Tensor:
        """Twice a."""
        return a * 2 if depth == 0 else double(a, depth - 1)

    with no_grad() if records else nnmpi.enable_grad():
        with mode():
            assert nnmpi.is_grad_enabled() == (leaf(1) * 2).requires_grad == records
            with mode():
                pass
            assert double(leaf(1)).requires_grad == records
        for decorated in (mode()(double), *([mode(double)] if mode in BARE else ())):
            assert nnmpi.is_grad_enabled() != records
            assert decorated(leaf(1), depth=1).requires_grad == records
            assert (decorated.__name__, decorated.__doc__) == ("double", "Twice a.")
        assert double(leaf(1)).requires_grad != records


def test_a_mode_may_be_set_without_a_block() -> None:
    with nnmpi.inference_mode(False):
        assert nnmpi.is_grad_enabled()
    nnmpi.set_grad_enabled(False)
    try:
        assert not nnmpi.is_grad_enabled()
    finally:
        nnmpi.set_grad_enabled(True)
    assert nnmpi.is_grad_enabled()


def test_no_grad_holds_in_its_own_thread_alone() -> None:
    inside, looked = threading.Event(), threading.Event()

    def quiet() -> bool:
        with no_grad():
            inside.set()
            looked.wait(10)
            return (leaf(1) * 2).requires_grad

    def loud() -> bool:
        inside.wait(10)
        recorded = (leaf(1) * 2).requires_grad
        looked.set()
        return recorded

    with ThreadPoolExecutor(2) as pool:
        found = [pool.submit(function) for function in (quiet, loud)]
    assert [future.result() for future in found] == [False, True]


# ---- writing in place

WRITES: dict[str, Callable[[Any], Any]] = {
    "set": lambda t: t.__setitem__(0, 9.0),
    "set all": lambda t: t.__setitem__(..., 9.0),
    "set by an index tensor": lambda t: t.__setitem__(Tensor(np.array([0])), 9.0),
    "+=": lambda t: t.__iadd__(1.0),
    "-=": lambda t: t.__isub__(1.0),
    "*=": lambda t: t.__imul__(3.0),
    "/=": lambda t: t.__itruediv__(2.0),
    "mul_": lambda t: t.mul_(2),
    "draws": lambda t: t.normal_(),
    "through a view": lambda t: t.view(-1).neg_(),
}
writes = pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)


@writes
def test_a_write_to_a_leaf_is_refused_but_under_no_grad(write: Callable[[Any], Any]) -> None:
    for a in (leaf(1, 2), nn.Parameter(np.array([1.0, 2.0]))):
        words = r"in place to a tensor of shape \(2,\).*make a new tensor, or write under"
        with pytest.raises(RuntimeError, match=words):
            write(a)
        assert a.tolist() == [1, 2]
        with no_grad():
            write(a)
        assert a.tolist() != [1, 2]
        assert a.requires_grad


@writes
def test_a_write_between_forward_and_backward_is_detected(write: Callable[[Any], Any]) -> None:
    for written in ("a leaf", "a constant", "a value"):
        a, constant = leaf(1, 2), Tensor(np.array([3.0, 4.0]))
        y = nnmpi.exp(a * a * constant)
        with no_grad():
            write({"a leaf": a, "a constant": constant, "a value": y}[written])
        with pytest.raises(RuntimeError, match=r"result of shape \(2,\).* written in place"):
            y.backward(np.ones(2))


def test_a_write_before_the_forward_pass_or_after_the_backward_pass_is_fine():
    a = leaf(1, 2)
    with no_grad():
        a *= 2
    y = (a * a).sum()
    y.backward()
    with no_grad():
        a[...] = 0.0
    assert a.grad.tolist() == [4.0, 8.0]


def test_writes_broadcast_and_take_what_arithmetic_takes():
    t = nnmpi.tensor(np.zeros((2, 3), "float32"))
    memory = t.array
    t += np.array([1.0, 2.0, 3.0])
    t *= [1, 10, 100]
    t[0] = Tensor(np.array([7.0, 8.0, 9.0]))
    t[:, 1] -= 1
    t[t > 200] = 5
    t /= 2
    assert t.array is memory
    assert t.dtype == np.float32
    assert t.numpy().tolist() == [[3.5, 3.5, 4.5], [0.5, 9.5, 2.5]]
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(4,\)"):
        t += np.ones(4)


VIEWS = {
    "T": lambda t: t.T,
    "reshape": lambda t: t.reshape(4, 1),
    "a slice": lambda t: t[:1],
    "narrow": lambda t: t.narrow(0, 1, 1),
    "a row": lambda t: t[0],
    "a row by NumPy's integer": lambda t: t[np.int64(0)],
    "an element": lambda t: t[0, 1],
    "an element by NumPy's integers": lambda t: t[np.intp(0), np.uint8(1)],
    "a new axis": lambda t: t[None, np.int32(0)],
    "a 0-d array": lambda t: t[np.array(0)],
    "0-d arrays": lambda t: t[np.array(0), np.array(1)],
    "a 0-d tensor": lambda t: t[Tensor(np.array(0))],
    "detach": lambda t: t.detach(),
    "a view of a view": lambda t: t.T[1:][0],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_share_memory(view):
    """A single element too, as in PyTorch; only a reshaped transpose has to be copied."""
    t = Tensor(np.arange(4.0).reshape(2, 2))
    assert np.shares_memory(view(t).data, t.data)


COPIES = {
    "a list": lambda t: t[[0]],
    "True": lambda t: t[True],
    "NumPy's True": lambda t: t[np.True_],
    "a 0-d mask": lambda t: t[np.array(True)],
    "a mask": lambda t: t[np.array([True, False])],
}


@pytest.mark.parametrize("index", COPIES.values(), ids=COPIES)
def test_a_write_to_a_copy_changes_nothing(index):
    a = Tensor(np.arange(4.0).reshape(2, 2), requires_grad=True)
    h = a * 1.0
    y = (h * h).sum()
    with no_grad():
        index(h)[...] = 5.0
    y.backward()
    assert a.grad.tolist() == [[0, 2], [4, 6]]
    a.grad = None
    index(a).sum().backward()
    expected = np.zeros((2, 2))
    np.add.at(expected, ..., np.isin(a.numpy(), index(a.detach()).numpy()))
    assert (a.grad == expected).all()


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_write_through_a_view_is_detected(view):
    for make in (lambda a: a, lambda a: a * 1.0):
        a = Tensor(np.arange(4.0).reshape(2, 2), requires_grad=True)
        h = make(a)
        y = (h * h).sum()
        with no_grad():
            view(h)[...] = 5.0
        with pytest.raises(RuntimeError, match="written in place"):
            y.backward()


def test_clip_without_bounds_is_a_copy():
    a = Tensor(np.array([1.0]))
    nnmpi.clip(a)[...] = 2.0
    assert a.item() == 1.0

"""Where nothing is recorded: no_grad, detached values, and writing in place."""

import threading

import numpy as np
import pytest

import nnmpi
from nnmpi.autograd import Tensor, no_grad


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values, "float64"), requires_grad=True)


# ---- no_grad


def test_no_grad_leaves_nothing_behind():
    a = leaf(1, 2)
    with no_grad():
        y = a * 2
        with no_grad():
            pass
        z = y.sum()
    assert not y.requires_grad
    assert not z.requires_grad
    assert (a * 2).requires_grad


def test_no_grad_decorates():
    @no_grad()
    def double(a: Tensor, depth: int = 2) -> Tensor:
        """Twice a."""
        return a * 2 if depth == 0 else double(a, depth - 1)

    assert not double(leaf(1)).requires_grad
    assert (leaf(1) * 2).requires_grad
    assert double.__doc__ == "Twice a."


def run_in_threads(*functions) -> list:
    """What each function returns, all of them under way at once."""
    answers = [None] * len(functions)

    def answer(k: int) -> None:
        try:
            answers[k] = functions[k]()
        except Exception as problem:
            answers[k] = problem

    threads = [threading.Thread(target=answer, args=(k,)) for k in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    return answers


def test_no_grad_holds_in_its_own_thread_alone():
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

    assert run_in_threads(quiet, loud) == [False, True]


def test_detach_cuts_off():
    a = leaf(1, 2)
    y = a * 3
    cut = y.detach()
    assert cut.array is y.array
    assert not cut.requires_grad
    (cut * y).sum().backward()
    assert a.grad.tolist() == [9.0, 18.0]


# ---- writing in place

WRITES = {
    "set": lambda t: t.__setitem__(0, 9.0),
    "set all": lambda t: t.__setitem__(..., 9.0),
    "set by an index tensor": lambda t: t.__setitem__(Tensor(np.array([0])), 9.0),
    "+=": lambda t: t.__iadd__(1.0),
    "-=": lambda t: t.__isub__(1.0),
    "*=": lambda t: t.__imul__(3.0),
    "/=": lambda t: t.__itruediv__(2.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_to_a_tensor_that_needs_a_gradient_is_refused(write):
    a = leaf(1, 2)
    with pytest.raises(RuntimeError, match=r"in place to a tensor of shape \(2,\)"):
        write(a)
    assert a.numpy().tolist() == [1, 2]
    free = Tensor(np.array([1.0, 2.0]))
    write(free)
    assert free.numpy().tolist() != [1.0, 2.0]


def test_results_are_written_by_index_and_through_views():
    a = leaf(1, 2)
    result = a * 2
    view = result.reshape(1, 2)
    result[0] = 9.0
    view[0, 1] *= 3
    result.sum().backward()
    assert (result.tolist(), view.tolist(), a.grad.tolist()) == ([9, 12], [[9, 12]], [0, 6])


def test_a_sum_of_losses_has_gradients_of_all():
    a, total = leaf(1, 2), Tensor(np.zeros(2))
    first = total
    for factor in (2.0, 3.0):
        total += a * factor
    total *= 2.0
    total.sum().backward()
    assert first is total
    assert a.grad.tolist() == [10, 10]


def test_an_array_that_shares_memory_has_what_is_written_with_a_gradient():
    array, a = np.zeros(2), leaf(1, 2)
    total = nnmpi.from_numpy(array)
    total[...] = a * 2
    assert array.tolist() == [2, 4]
    with no_grad():
        total += a * 2
    total[1] = a.detach()[0]
    assert array.tolist() == [4, 1]


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_write_between_forward_and_backward_is_detected(write):
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


def test_a_plain_step_of_gradient_descent_moves_the_parameter():
    p = leaf(4, -4)
    memory = p.array
    for _ in range(50):
        p.grad = None
        (p * p).sum().backward()
        with no_grad():
            p -= 0.25 * p.grad
    assert p.array is memory
    assert p.requires_grad
    assert np.abs(memory).max() < 1e-12


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


@pytest.mark.parametrize("write", ["__itruediv__", "__iadd__"])
def test_integers_are_not_truncated_in_place(write):
    t = Tensor(np.array([1, 2, 3]))
    with pytest.raises(TypeError, match="a int64 tensor cannot take float32 results in place"):
        getattr(t, write)(0.5)
    assert t.numpy().tolist() == [1, 2, 3]

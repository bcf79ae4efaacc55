"""Parameters, buffers and gradients in the memory of tensors, as PyTorch has them."""

import copy
import pickle
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from helpers.ops.oracle import in_both

import nnmpi
from nnmpi import nn


def step(n: Any, *parameters: Any) -> None:
    """One step of gradient descent on the sums of squares, which turns p into -p."""
    opt = n.optim.SGD(parameters, lr=1.0)
    sum((p * p).sum() for p in parameters).backward()
    opt.step()


def a_tensor_becomes_a_parameter(n: Any) -> list[Any]:
    z = n.ones(3)
    p = n.nn.Parameter(z)
    z.add_(1)
    p.data[0] = 5
    return [p, z]


def an_optimizer_moves_it(n: Any) -> list[Any]:
    z = n.ones(2, 3)
    row, p = z[1], n.nn.Parameter(z)
    column, d = p.detach()[:, 0], p.data
    step(n, p)
    row.mul_(2)
    return [p, z, row, column, d]


def data_is_a_tensor(n: Any) -> list[Any]:
    p, z = n.nn.Linear(3, 1).weight, n.ones(1, 3)
    p.data = z
    z.mul_(3)
    view = z.view(-1)
    step(n, p)
    return [p, z, view]


def data_of_a_leaf(n: Any) -> list[Any]:
    t, z = n.zeros(3, requires_grad=True), n.ones(3)
    t.data = z
    z.add_(1)
    t.data.add_(1)
    return [t, z]


def a_leaf_whose_memory_another_has(n: Any) -> list[Any]:
    z = n.ones(3)
    t = z.detach().requires_grad_()
    step(n, t)
    return [t, z]


def data_of_another_parameter(n: Any) -> list[Any]:
    a, b = n.nn.Linear(2, 2), n.nn.Linear(2, 2)
    b.weight.data = a.weight.data
    with n.no_grad():
        a.weight.fill_(2)
    found = [b.weight.detach().clone()]
    del b
    step(n, a.weight)
    return [*found, a.weight]


def writes_without_gradients(n: Any) -> list[Any]:
    z, x = n.ones(3), n.zeros(3)
    p = n.nn.Parameter(z)
    row, d = z[1:], p.detach()
    step(n, p)
    with n.no_grad():
        x += z
        z -= 1
        row.mul_(2)
        d[0] = 5
        x[1:] = row
    return [p, z, row, d, x]


def a_view_and_what_it_views(n: Any) -> list[Any]:
    z, w = n.ones(3), n.ones(2, requires_grad=True)
    row, p = z[1:], n.nn.Parameter(z)
    step(n, p)
    row *= 3 * w
    (z * z).sum().backward()
    return [p, z, w.grad]


def a_module_is_moved(n: Any) -> list[Any]:
    z, m = n.ones(1, 3), n.nn.Linear(3, 1, bias=False)
    m.weight = n.nn.Parameter(z)
    d = m.weight.detach()
    for _ in range(2):
        m.to("cpu")
    with n.no_grad():
        m.weight.fill_(4)
    found = [z.clone(), d.clone()]
    m.to(n.float64)
    with n.no_grad():
        m.weight.fill_(5)
    return [*found, z, m.weight]


def a_buffer(n: Any) -> list[Any]:
    m, z = n.nn.Module(), n.ones(3)
    m.register_buffer("b", z)
    z.add_(1)
    z = z.relu_()
    m.b += 1
    return [n.as_tensor(m.b), z]


def copies(n: Any) -> list[Any]:
    z = n.ones(3)
    shallow, deep = copy.copy(z), copy.deepcopy(z)
    z.relu_().add_(1)
    return [z, shallow, deep]


def copies_of_what_shares_memory(n: Any) -> list[Any]:
    z = n.ones(3)
    p = n.nn.Parameter(z)
    row, d = z[1:], p.detach()
    step(n, p)
    made = [copy.deepcopy(t) for t in (z, row, d, p.data, p)]
    made += [pickle.loads(pickle.dumps(t)) for t in (row, d)]
    with n.no_grad():
        for t in made:
            t.add_(1)
    return [*made, z]


def gradients_that_are_kept(n: Any) -> list[Any]:
    p = n.nn.Parameter(n.ones(2, 2))
    opt = n.optim.SGD([p], lr=0.0)
    kept = []
    for k in range(3):
        opt.zero_grad()
        (p * p).sum().mul(k + 1.0).backward()
        kept += [p.grad, p.grad[0]]
    assert p.grad is p.grad
    p.grad = None
    return kept


def zeros_for_a_gradient_that_is_kept(n: Any) -> list[Any]:
    p = n.nn.Parameter(n.ones(2))
    (p * p).sum().backward()
    g = p.grad
    n.optim.SGD([p], lr=0.0).zero_grad(set_to_none=False)
    return [g]


def data_that_is_given_after_an_optimizer(n: Any) -> list[Any]:
    p, q, z = n.nn.Parameter(n.ones(2, 2)), n.nn.Parameter(n.ones(3)), n.ones(2, 2) * 2
    opt = n.optim.SGD([p, q], lr=1.0)
    row, d = z[1], z.detach()
    p.data = z
    z.add_(1)
    opt.zero_grad()
    ((p * p).sum() + q.sum()).backward()
    opt.step()
    row.mul_(2)
    d[0, 0] = 7
    return [p, z, row, d, q]


def arrays_of_gradients_that_are_kept(n: Any) -> list[Any]:
    p, q = n.nn.Parameter(n.ones(2, 2)), n.nn.Parameter(n.ones(3))
    opt = n.optim.SGD([p, q], lr=0.5)
    kept = []
    for k in range(3):
        opt.zero_grad()
        ((p * p).sum() * (k + 1.0) + q.sum()).backward()
        g = p.grad
        kept += [g.numpy(), g.detach().numpy()[0], g.data[1].numpy(), np.asarray(q.grad)[:1]]
        opt.step()
    return [*kept, p, q]


def gradients_that_add_up(n: Any) -> list[Any]:
    p, x = n.nn.Parameter(n.ones(2)), n.ones(2, requires_grad=True)
    n.optim.SGD([p], lr=0.5)
    (p * x).sum().backward()
    kept = [f(t.grad) for t in (p, x) for f in (lambda g: g, lambda g: g.numpy())]
    (p * x).sum().backward()
    kept[1][0] = kept[3][0] = 7  # where each gradient is
    return [*kept, p.grad, x.grad]


def a_gradient_of_which_an_array_is_kept_is_replaced(n: Any) -> list[Any]:
    p, q = n.nn.Parameter(n.ones(2)), n.nn.Parameter(n.ones(2))
    opt = n.optim.SGD([p, q], lr=1.0)
    (p * q).sum().backward()
    array = p.grad.numpy()
    p.grad = None
    (p * q).sum().mul(3.0).backward()  # the gradient of q goes on
    opt.step()
    return [array, p.grad, q.grad, p, q]


def averages_in_place_of_values(n: Any) -> list[Any]:
    p, image = n.nn.Parameter(n.ones(2)), n.nn.Conv2d(2, 1, 2).weight
    n.nn.init.ones_(image)
    found = []
    for _ in range(2):
        for q in (p, image):
            average, backup = q.data.clone().mul_(3), q.data
            row, array = q.detach(), q.detach().clone().numpy()
            q.data = average
            found += [q.sum(), backup.sum(), row.sum()]
            q.data = backup
            found += [q.sum(), average.sum(), n.tensor(array).sum()]
        optimizer = n.optim.SGD([p, image], lr=1.0)
        (p.sum() + image.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        with n.no_grad():
            for q in (p, image):
                q.add_(2)
    return found


def a_gradient_is_assigned(n: Any) -> list[Any]:
    p = n.nn.Parameter(n.ones(2))
    n.optim.SGD([p], lr=1.0)
    (p * p).sum().backward()
    kept = [p.grad, p.grad.detach(), p.grad.numpy()]
    p.grad = p.grad * 2
    last = p.grad
    p.grad = last
    p.grad *= 2
    return [*kept, last, p.grad]


def reshaped_gradients(n: Any) -> list[Any]:
    layer, kept = n.nn.Conv2d(2, 1, 2, bias=False), []
    for k in range(3):
        (layer(n.ones(1, 2, 2, 2)) * k).sum().backward()
        kept.append(layer.weight.grad.view(-1))
        if k == 0:
            opt = n.optim.SGD(layer.parameters(), lr=1.0)
        opt.zero_grad()
    return kept


def data_of_a_gradient(n: Any) -> list[Any]:
    p, x = n.nn.Parameter(n.ones(2)), n.ones(2, requires_grad=True)
    opt = n.optim.SGD([p], lr=1.0)
    (p * x * 2).sum().backward()
    for t in (p, x):
        t.grad.data = t.grad.data * 2
        t.grad.data /= 4
        t.grad.data[0] = -3
        n.nn.functional.relu(t.grad.neg_(), inplace=True)
        t.grad.add_(n.tensor([0.0, 1.0]))
    opt.step()
    return [p.grad, x.grad, p]


def a_gradient_moves(n: Any) -> list[Any]:
    p = n.nn.Parameter(n.ones(2))
    (p * p).sum().backward()
    kept = [p.grad, p.grad.view(-1), p.grad.data, p.grad.detach()[1:]]
    opt = n.optim.SGD([p], lr=1.0)
    p.grad.mul_(2)
    found = [t.clone() for t in kept]
    opt.zero_grad(set_to_none=False)
    return [*found, *kept]


CASES: dict[Callable[[Any], list[Any]], Any] = {
    a_tensor_becomes_a_parameter: [[5, 2, 2]] * 2,
    an_optimizer_moves_it: [
        *[[[-1, -1, -1], [-2, -2, -2]]] * 2, [-2, -2, -2], [-1, -2], [[-1, -1, -1], [-2, -2, -2]]
    ],
    data_is_a_tensor: [[[-3, -3, -3]], [[-3, -3, -3]], [-3, -3, -3]],
    data_of_a_leaf: [[3, 3, 3]] * 2,
    a_leaf_whose_memory_another_has: [[-1, -1, -1]] * 2,
    data_of_another_parameter: [[[2, 2], [2, 2]], [[-2, -2], [-2, -2]]],
    writes_without_gradients: [
        [5, -4, -4], [5, -4, -4], [-4, -4], [5, -4, -4], [-1, -4, -4]
    ],
    a_view_and_what_it_views: [[-1, -3, -3], [-1, -3, -3], [18, 18]],
    a_module_is_moved: [[[4, 4, 4]], [[4, 4, 4]], [[4, 4, 4]], [[5, 5, 5]]],
    a_buffer: [[3, 3, 3]] * 2,
    copies: [[2, 2, 2], [2, 2, 2], [1, 1, 1]],
    copies_of_what_shares_memory: [
        [0, 0, 0], [0, 0], [0, 0, 0], [0, 0, 0], [0, 0, 0], [0, 0], [0, 0, 0], [-1, -1, -1]
    ],
    gradients_that_are_kept: [
        [[2, 2], [2, 2]], [2, 2], [[4, 4], [4, 4]], [4, 4], [[6, 6], [6, 6]], [6, 6]
    ],
    zeros_for_a_gradient_that_is_kept: [[0, 0]],
    data_that_is_given_after_an_optimizer: [
        [[7, -3], [-6, -6]], [[7, -3], [-6, -6]], [-6, -6], [[7, -3], [-6, -6]], [0, 0, 0]
    ],
    arrays_of_gradients_that_are_kept: [
        [[2, 2], [2, 2]], [2, 2], [2, 2], [1], [[0, 0], [0, 0]], [0, 0], [0, 0], [1],
        [[0, 0], [0, 0]], [0, 0], [0, 0], [1], [[0, 0], [0, 0]], [-0.5, -0.5, -0.5],
    ],
    gradients_that_add_up: [[7, 2]] * 6,
    averages_in_place_of_values: [
        *[6, 2, 2, 2, 6, 2], *[24, 8, 8, 8, 24, 8], *[12, 4, 4, 4, 12, 4], *[48, 16, 16, 16, 48, 16]
    ],
    a_gradient_is_assigned: [[2, 2], [2, 2], [2, 2], [8, 8], [8, 8]],
    reshaped_gradients: [[0] * 8, [1] * 8, [2] * 8],
    data_of_a_gradient: [[3, 1], [3, 1], [-2, 0]],
    a_gradient_moves: [[4, 4], [4, 4], [4, 4], [4], [0, 0], [0, 0], [0, 0], [0]],
    a_gradient_of_which_an_array_is_kept_is_replaced: [[1, 1], [3, 3], [4, 4], [-2, -2], [-3, -3]],
}  # fmt: skip
"""What each case returns at the end."""


@in_both
@pytest.mark.parametrize("case", CASES)
def test_all_see_what_is_written(case: Callable[[Any], list[Any]], library: str) -> None:
    assert [t.tolist() for t in case(import_module(library))] == CASES[case]


KEEP: dict[str, Callable[[Any], list[Any]]] = {
    "a tensor": lambda p: [p.grad],
    "an array": lambda p: [p.grad.numpy()],
    "both": lambda p: [p.grad, p.grad.numpy()],
}


@pytest.mark.parametrize("keep", KEEP.values(), ids=KEEP)
@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_compiled_step_leaves_gradients_that_a_program_keeps(
    first: int, keep: Callable[[Any], list[Any]]
) -> None:
    """Also those of its first call, which are there while it is recorded."""

    def kept_by(run: Callable[[Any], Any]) -> list[Any]:
        p = nn.Parameter(nnmpi.ones(3))
        opt = nnmpi.optim.SGD([p], lr=0.25)

        def step(x: Any) -> Any:
            loss = (p * p * x).sum()
            opt.zero_grad()
            loss.backward()
            opt.step()
            return loss

        step, kept, values = run(step), [], list[Any]()
        for k in range(10):
            step(nnmpi.full((3,), 1 + k / 8))
            if k in (first, first + 1):
                kept += keep(p)
            values.append([t.tolist() for t in kept])
            if k == first + 3:
                kept.clear()
        return [*values, p.tolist()]

    compiled = list[Any]()

    def compile_it(step: Any) -> Any:
        compiled.append(nnmpi.compile(step))
        return compiled[0]

    assert kept_by(compile_it) == kept_by(lambda step: step)
    assert compiled[0].replays > 0


def test_an_optimizer_refuses_two_parameters_in_one_memory() -> None:
    p = nn.Parameter(nnmpi.ones(3))
    q = nn.Parameter(p.data)
    with pytest.raises(ValueError, match="share their memory"):
        nnmpi.optim.SGD([p, q], lr=1.0)


def test_parameters_of_an_optimizer_do_not_get_the_memory_of_another() -> None:
    p, q = nn.Parameter(nnmpi.ones(3)), nn.Parameter(nnmpi.zeros(3))
    nnmpi.optim.SGD([p], lr=1.0)
    for value in (q.data, q):
        with pytest.raises(ValueError, match=r"share their memory.*p\.data\.copy_"):
            p.data = value
    p.data = q.data.clone()
    assert p.tolist() == [0, 0, 0]


def test_a_copy_of_a_view_has_its_elements_only() -> None:
    row = nnmpi.zeros(1000, 100)[0]
    assert len(pickle.dumps(row)) < 2 * row.array.nbytes


def test_a_result_that_needs_a_gradient_is_not_copied_without_it() -> None:
    with pytest.raises(RuntimeError, match="cannot be copied by deepcopy"):
        copy.deepcopy(nnmpi.ones(3, requires_grad=True) * 2)


def test_a_parameter_of_an_array_is_a_copy() -> None:
    array = np.ones(3, "float32")
    p = nn.Parameter(array)
    array[0] = 7
    assert p.tolist() == [1, 1, 1]


@in_both
def test_what_is_frozen_after_the_forward_pass_gets_no_gradient(library: str) -> None:
    n = import_module(library)
    layers, x = [n.nn.Linear(2, 2) for _ in range(2)], n.ones(1, 2, requires_grad=True)
    loss = layers[1](layers[0](x)).sum()
    for p in [*layers[1].parameters(), x]:
        p.requires_grad_(False)
    loss.backward()
    leaves = [*layers[0].parameters(), *layers[1].parameters(), x]
    assert [p.grad is None for p in leaves] == [False, False, True, True, True]

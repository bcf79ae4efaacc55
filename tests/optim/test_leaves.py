"""Optimizers of plain tensors, and steps with a closure, beside PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim
from nnmpi.optim.rules import OPTIMIZERS

RNG = np.random.default_rng(0)
X = RNG.standard_normal((30, 4))
Y = X @ np.array([1.0, -2.0, 3.0, 0.5]) + 0.3
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.02, "momentum": 0.9}),
    "adam": ("Adam", {"lr": 0.05}),
    "adamw": ("AdamW", {"lr": 0.05}),
    "rmsprop": ("RMSprop", {"lr": 0.05}),
    "lbfgs": ("LBFGS", {"lr": 0.5, "max_iter": 5, "history_size": 3}),
    "lbfgs, few calls": ("LBFGS", {"max_iter": 4, "max_eval": 3, "tolerance_grad": 1e-3}),
    "lbfgs, line search": ("LBFGS", {"max_iter": 5, "line_search_fn": "strong_wolfe"}),
    "lbfgs, a long first step": (
        "LBFGS",
        {"lr": 40.0, "max_iter": 3, "history_size": 2, "line_search_fn": "strong_wolfe"},
    ),
}


def losses(n: Any, name: str, options: dict[str, Any]) -> tuple[list[float], np.ndarray]:
    """Of a polynomial of two tensors, and the first of these at the end. A closure records
    gradients where its caller does not."""
    w = n.zeros(4, dtype=n.float64, requires_grad=True)
    b = n.zeros(1, dtype=n.float64, requires_grad=True)
    x, y, found = n.tensor(X), n.tensor(Y), []
    opt = getattr(n.optim, name)([w, b], **options)

    def closure() -> Any:
        opt.zero_grad()
        loss = ((x @ w + b - y) ** 4).mean() + ((w * w).sum() - 1) ** 2 * 0.1
        loss.backward()
        found.append(loss.item())
        return loss

    for step in range(6):
        calls = len(found)
        with n.no_grad():
            assert opt.step(closure).item() == found[calls]
        if step == 2:
            with n.no_grad():
                w.clamp_(-1.0, 1.0)
        if step == 3:
            b.data = b.data * 0.5
    return found, w.detach().numpy()


def test_the_rules_are_all() -> None:
    assert {name.lower() for name, _ in RULES.values()} >= {*OPTIMIZERS}


@needs_torch
@pytest.mark.parametrize("rule", RULES)
def test_steps_are_pytorchs(rule: str) -> None:
    (ours, mine), (theirs, its) = (losses(n, *RULES[rule]) for n in (nnmpi, pytorch()))
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)
    np.testing.assert_allclose(mine, its, rtol=1e-9)


def test_groups_have_the_gradients_of_tensors() -> None:
    t = nnmpi.tensor([3.0, 4.0], requires_grad=True)
    opt = optim.SGD([t], lr=1.0)
    (t * t).sum().backward()
    (p,) = opt.param_groups[0]["params"]
    nn.utils.clip_grad_norm_([p], 5.0)
    np.testing.assert_allclose(t.grad.numpy(), [3.0, 4.0], rtol=1e-5)
    opt.step()
    np.testing.assert_allclose(t.detach().numpy(), [0.0, 0.0], atol=1e-4)
    p.grad.zero_()
    opt.step()
    np.testing.assert_allclose(t.detach().numpy(), [0.0, 0.0], atol=1e-4)
    p.grad = None
    assert t.grad is None


@pytest.mark.parametrize("set_to_none", [False, True])
def test_gradients_of_tensors_are_cleared(set_to_none: bool) -> None:
    t = nnmpi.ones(2, requires_grad=True)
    opt = optim.SGD([t, nn.Parameter(np.ones(3, "float32"))], lr=0.5)
    (t * t).sum().backward()
    opt.step()
    np.testing.assert_array_equal(t.detach().numpy(), [0, 0])
    opt.zero_grad(set_to_none)
    assert (t.grad is None) == set_to_none
    assert set_to_none or t.grad.tolist() == [0, 0]  # type: ignore[union-attr]


@pytest.mark.parametrize("n", [nnmpi, pytest.param("torch", marks=needs_torch)])
def test_writes_to_a_tensor_that_has_views_are_kept(n: Any) -> None:
    n = pytorch() if n == "torch" else n
    t = n.ones(3, requires_grad=True)
    row = t.view(-1)[1:].detach()
    opt = n.optim.SGD([t], lr=0.5)
    for _ in range(2):
        opt.zero_grad()
        (t.view(1, 3) * 2).sum().backward()
        opt.step()
        t.data.clamp_(min=-0.25)
        with n.no_grad():
            t[0].add_(3)
    assert (t.tolist(), row.tolist()) == ([5, -0.25, -0.25], [-0.25, -0.25])


@pytest.mark.parametrize("of_layer", [False, True])
@pytest.mark.parametrize("name", RULES)
def test_a_graph_from_before_a_step_is_refused(name: str, of_layer: bool) -> None:
    t = nn.Linear(2, 2).weight if of_layer else nnmpi.ones(2, requires_grad=True)
    rule, options = RULES[name]
    opt: Any = getattr(optim, rule)([t], **options)

    def closure() -> nnmpi.Tensor:
        opt.zero_grad()
        value = (t * t).sum()
        value.backward(retain_graph=True)
        return value

    loss = closure()
    opt.step(closure)
    with pytest.raises(RuntimeError, match="written in place"):
        loss.backward()


def test_tensors_that_cannot_be_updated_are_refused() -> None:
    t = nnmpi.ones(2, requires_grad=True)
    with refused("is a result"):
        optim.SGD([t * 2], lr=0.1)
    with refused("requires no gradient"):
        optim.SGD([t.detach()], lr=0.1)

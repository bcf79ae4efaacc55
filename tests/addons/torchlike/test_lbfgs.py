"""L-BFGS: its line search and its state, beside PyTorch's."""

import copy
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim
from nnmpi.addons.torchlike.optim.line_search import Trial, strong_wolfe

WOLFE = {"line_search_fn": "strong_wolfe"}
X, Y = np.random.default_rng(0).standard_normal((2, 12, 3))


def rosenbrock(n: Any) -> tuple[list[Any], Any]:
    """Two tensors at which the valley is steep, and the function of them."""
    x, y = (n.tensor([v], dtype=n.float64, requires_grad=True) for v in (-1.2, 1.0))
    return [x, y], lambda: ((1 - x) ** 2).sum() + 100 * ((y - x * x) ** 2).sum()


def squares(n: Any) -> tuple[list[Any], Any]:
    """The weight and the bias of a least-squares fit."""
    w = n.zeros(3, 3, dtype=n.float64, requires_grad=True)
    b = n.zeros(3, dtype=n.float64, requires_grad=True)
    x, y = n.tensor(X), n.tensor(Y)
    return [w, b], lambda: n.nn.functional.mse_loss(x @ w + b, y)


def absolute(n: Any) -> tuple[list[Any], Any]:
    """A function of two lines, along which no curvature is found."""
    x = n.tensor([3.0], dtype=n.float64, requires_grad=True)
    return [x], lambda: 0.7 * x.abs().sum()


PROBLEMS = {"rosenbrock": rosenbrock, "squares": squares, "absolute": absolute}
OPTIONS: dict[str, dict[str, Any]] = {
    "search": {},
    "long steps": {"lr": 30.0},
    "short steps": {"lr": 1e-3, "max_iter": 6},
    "few calls": {"max_iter": 8, "max_eval": 4, "history_size": 2},
}
CASES = [*product(PROBLEMS, OPTIONS)]
CASES.remove(("absolute", "short steps"))  # where a rounding decides how much longer a step is


class Run:
    """L-BFGS on a problem: the losses of all calls of its closure, and the optimizer."""

    def __init__(self, n: Any, problem: str, **options: Any) -> None:
        self.tensors, self.function = PROBLEMS[problem](n)
        self.losses = list[float]()
        self.opt = n.optim.LBFGS(self.tensors, **WOLFE | options)

    def closure(self) -> Any:
        self.opt.zero_grad()
        loss = self.function()
        loss.backward()
        self.losses.append(loss.item())
        return loss

    def steps(self, count: int) -> list[float]:
        for _ in range(count):
            self.opt.step(self.closure)
        return self.losses

    def values(self) -> list[float]:
        return [v for t in self.tensors for v in t.detach().numpy().ravel()]


@needs_torch
@pytest.mark.parametrize(("problem", "options"), CASES)
def test_searches_are_pytorchs(problem: str, options: str) -> None:
    ours, theirs = (Run(n, problem, **OPTIONS[options]) for n in (nnmpi, pytorch()))
    np.testing.assert_allclose(ours.steps(4), theirs.steps(4), rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(ours.values(), theirs.values(), rtol=1e-6, atol=1e-6)


# ---- the state


@pytest.mark.parametrize("options", [WOLFE, {"line_search_fn": None, "lr": 1e-3}])
def test_training_goes_on_with_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    run, other = (Run(nnmpi, "squares", max_iter=3, **options) for _ in range(2))
    run.steps(2)
    for mine, its in zip(other.tensors, run.tensors, strict=True):
        mine.data = its.detach().clone()
    nnmpi.save(run.opt.state_dict(), tmp_path / "state.safetensors")
    other.opt.load_state_dict(nnmpi.load(tmp_path / "state.safetensors"))
    calls = len(run.losses)
    assert run.steps(2)[calls:] == other.steps(2)
    assert run.values() == other.values()


def test_a_state_dict_is_a_copy() -> None:
    run = Run(nnmpi, "squares", max_iter=3)
    assert run.opt.state_dict()["state"] == {}
    run.steps(1)
    state = run.opt.state_dict()
    kept = copy.deepcopy(state)
    run.steps(1)
    for name, value in kept["state"][0].items():
        np.testing.assert_equal(state["state"][0][name], value)


def test_a_cleared_state_has_no_history() -> None:
    run, new = (Run(nnmpi, "squares", max_iter=3) for _ in range(2))
    run.steps(2)
    for mine, its in zip(new.tensors, run.tensors, strict=True):
        mine.data = its.detach().clone()
    run.opt.state.clear()
    calls = len(run.losses)
    assert run.steps(2)[calls:] == new.steps(2)


@needs_torch
@pytest.mark.parametrize("back", [False, True])
def test_training_goes_on_in_the_other_library(back: bool) -> None:
    libraries = (pytorch(), nnmpi) if back else (nnmpi, pytorch())
    run, other = (Run(n, "rosenbrock", max_iter=4) for n in libraries)
    run.steps(2)
    for mine, its in zip(other.tensors, run.tensors, strict=True):
        mine.data = libraries[1].tensor(its.detach().numpy())
    state = run.opt.state_dict()
    if not back:  # PyTorch has tensors where nnmpi has arrays
        of_zero = state["state"][0]
        for name, value in of_zero.items():
            of_zero[name] = tensors_of(libraries[1], value)
    other.opt.load_state_dict(state)
    calls = len(run.losses)
    np.testing.assert_allclose(other.steps(3), run.steps(3)[calls:], rtol=1e-9, atol=1e-15)


def tensors_of(torch: Any, value: Any) -> Any:
    """The value with tensors in place of arrays, and those of numbers in lists."""
    if isinstance(value, list):
        return [torch.tensor(v) for v in value]
    return torch.tensor(value) if isinstance(value, np.ndarray) else value


def test_what_it_cannot_do_is_refused() -> None:
    p = [nn.Parameter(np.ones(3, "float32"))]
    with refused("line_search_fn='armijo' must be 'strong_wolfe'"):
        optim.LBFGS(p, line_search_fn="armijo")
    with refused("give one list"):
        optim.LBFGS([{"params": p}, {"params": [nn.Parameter(np.ones(1, "float32"))]}])
    with refused("needs a function"):
        optim.LBFGS(p).step()
    run, opt = Run(nnmpi, "rosenbrock"), optim.LBFGS([*p, nn.Parameter(np.ones(1, "float32"))])
    run.steps(1)
    with refused("an array of shape (2,), and the parameters have 4 numbers"):
        opt.load_state_dict(run.opt.state_dict())
    with refused("load_state_dict takes a state_dict()"):
        opt.load_state_dict({"0.step": 0})


# ---- the search alone


def searched(f: Any, length: float, tolerance: float = 1e-9) -> tuple[Trial, int]:
    """The trial that is found for a function, which returns a value and its derivative, and the
    number of calls."""
    calls = list[float]()

    def tried(t: float) -> Trial:
        calls.append(t)
        value, slope = f(t)
        return Trial(t, value, None, slope)

    start = Trial(0.0, *(f(0.0)[0], None, f(0.0)[1]))
    return strong_wolfe(tried, start, length, 25, tolerance), len(calls)


@pytest.mark.parametrize("length", [1e-4, 0.3, 1.0, 7.0, 1e4])
@pytest.mark.parametrize("low", [0.1, 1.0, 50.0])
def test_the_conditions_hold(low: float, length: float) -> None:
    def f(t: float) -> tuple[float, float]:
        return (t - low) ** 4 + 0.1 * t, 4 * (t - low) ** 3 + 0.1

    if f(0.0)[1] >= 0:  # no direction of descent
        f = lambda t: ((t - low) ** 2, 2 * (t - low))  # noqa: E731
    found, _ = searched(f, length)
    value, slope = f(0.0)
    assert found.loss <= value + 1e-4 * found.length * slope
    assert abs(found.slope) <= 0.9 * abs(slope)


def test_a_line_without_an_end_is_left_after_25_further_trials() -> None:
    found, calls = searched(lambda t: (-t, -1.0), 1.0)
    assert calls == 26
    assert found.length == pytest.approx(10.0**25)


def test_a_short_bracket_is_not_made_smaller() -> None:
    def step(t: float) -> tuple[float, float]:
        return (-t, -1.0) if t < 0.5 else (1.0, -1.0)

    found, calls = searched(step, 1.0, tolerance=0.2)
    assert found.length < 0.5
    assert calls < searched(step, 1.0)[1]

"""Optimizers against PyTorch's, step by step, and rules of their own."""

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch
from helpers.twins import Twins

import nnmpi
from nnmpi import nn, optim

STEPS = 20


def model(dtype: str = "float64") -> nn.Sequential:
    """A weight whose memory is not in the order of its axes, and sizes that leave gaps."""
    layers = nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.Tanh()
    m = nn.Sequential(*layers, nn.Linear(4, 2))
    m.to(dtype)
    return m


def gradients(m: nn.Module, step: int) -> list[np.ndarray]:
    """New ones for every step, some of them zero."""
    rng = np.random.default_rng(step)
    grads = [rng.standard_normal(p.shape) * 10.0 ** rng.integers(-2, 2) for p in m.parameters()]
    for g in grads:
        g[..., 0] *= step % 3 != 0
    return grads


def everywhere(step: int, i: int) -> bool:
    return True


def in_some_steps(step: int, i: int) -> bool:
    """Parameter 0 from the start, 1 and 4 every other step, 2 late, 3 with gaps, 5 never."""
    return [True, step % 2 == 0, step > 6, step % 5 < 3, step % 2 == 1, False][i]


RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1}),
    "sgd, decay": ("SGD", {"lr": 0.1, "weight_decay": 0.05}),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}),
    "momentum, decay": ("SGD", {"lr": 0.1, "momentum": 0.5, "weight_decay": 0.05}),
    "dampening": ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3}),
    "dampening, decay": (
        "SGD",
        {"lr": 0.1, "momentum": 0.5, "dampening": 0.5, "weight_decay": 0.05},
    ),
    "no momentum to dampen": ("SGD", {"lr": 0.1, "dampening": 0.5}),
    "nesterov": ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "nesterov, decay": (
        "SGD",
        {"lr": 0.1, "momentum": 0.7, "nesterov": True, "weight_decay": 0.05},
    ),
    "adam": ("Adam", {}),
    "adam, all": ("Adam", {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}),
    "adam, no memory": ("Adam", {"lr": 0.01, "betas": (0.0, 0.0)}),
    "adamw": ("AdamW", {}),
    "adamw, all": ("AdamW", {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-2, "weight_decay": 0.3}),
    "adamw, no decay": ("AdamW", {"lr": 0.01, "weight_decay": 0.0}),
    "amsgrad": ("Adam", {"lr": 0.05, "betas": (0.8, 0.9), "amsgrad": True}),
    "amsgrad, adamw": ("AdamW", {"lr": 0.05, "betas": (0.5, 0.7), "amsgrad": True}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop, decay": ("RMSprop", {"lr": 0.02, "alpha": 0.9, "eps": 1e-4, "weight_decay": 0.05}),
    "rmsprop, momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop, centered": ("RMSprop", {"centered": True, "eps": 1e-3}),
    "rmsprop, all": (
        "RMSprop",
        {"alpha": 0.8, "eps": 1e-2, "weight_decay": 0.1, "momentum": 0.5, "centered": True},
    ),
    "adadelta": ("Adadelta", {}),
    "adadelta, all": ("Adadelta", {"lr": 0.5, "rho": 0.8, "eps": 1e-3, "weight_decay": 0.1}),
    "adagrad": ("Adagrad", {}),
    "adagrad, all": (
        "Adagrad",
        {
            "lr": 0.1,
            "lr_decay": 0.2,
            "weight_decay": 0.1,
            "initial_accumulator_value": 0.3,
            "eps": 1e-3,
        },
    ),
    "nadam": ("NAdam", {}),
    "nadam, all": (
        "NAdam",
        {"lr": 0.05, "betas": (0.5, 0.9), "eps": 1e-2, "weight_decay": 0.1, "momentum_decay": 0.1},
    ),
    "nadam, decoupled": ("NAdam", {"weight_decay": 0.2, "decoupled_weight_decay": True}),
    "nadam, no memory": ("NAdam", {"betas": (0.0, 0.0)}),
    "adamax": ("Adamax", {}),
    "adamax, all": ("Adamax", {"lr": 0.05, "betas": (0.5, 0.8), "eps": 1e-2, "weight_decay": 0.1}),
    "asgd": ("ASGD", {}),
    "asgd, all": ("ASGD", {"lr": 0.1, "lambd": 0.1, "alpha": 0.6, "t0": 3, "weight_decay": 0.1}),
    "rprop": ("Rprop", {}),
    "rprop, all": ("Rprop", {"lr": 0.1, "etas": (0.7, 1.5), "step_sizes": (0.04, 0.2)}),
    "radam": ("RAdam", {"betas": (0.9, 0.9)}),
    "radam, all": ("RAdam", {"lr": 0.05, "betas": (0.5, 0.8), "eps": 1e-2, "weight_decay": 0.1}),
    "radam, decoupled": ("RAdam", {"weight_decay": 0.2, "decoupled_weight_decay": True}),
}
MAXIMIZED = ("dampening, decay", "nesterov, decay", "adam, all", "adamw, all", "rmsprop, all")
MAXIMIZED += ("adadelta, all", "adagrad, all", "nadam, decoupled", "radam, all")
MAXIMIZED += ("adamax, all", "asgd, all", "rprop, all")
RULES |= {
    f"{rule}, maximized": (RULES[rule][0], RULES[rule][1] | {"maximize": True})
    for rule in MAXIMIZED
}


def twins_under(rule: str, m: nn.Module, halves: int = 1) -> Twins:
    """The parameters of a model under one optimizer, or under one for each half of them."""
    name, options = RULES[rule]

    def made(library: Any, parameters: list[Any]) -> list[Any]:
        part = len(parameters) // halves
        starts = range(0, len(parameters), part)
        return [getattr(library, name)(parameters[i : i + part], **options) for i in starts]

    return Twins(m.parameters(), made)


def step(
    twins: Twins, m: nn.Module, t: int, given: Callable[[int, int], bool] = everywhere
) -> None:
    for opt in twins.optimizers:
        opt.zero_grad()
    twins.step(g if given(t, i) else None for i, g in enumerate(gradients(m, t)))


@needs_torch
@pytest.mark.parametrize("given", [everywhere, in_some_steps])
@pytest.mark.parametrize("rule", RULES)
def test_trajectories_are_pytorchs(rule: str, given: Callable[[int, int], bool]) -> None:
    m = model()
    twins = twins_under(rule, m)
    untouched = twins.mine[-1].data.copy()
    for t in range(STEPS):
        step(twins, m, t, given)
        twins.compare()
    assert (twins.mine[-1].data == untouched).all() == (given is in_some_steps)
    counts = [sum(given(t, i) for t in range(STEPS)) for i in range(len(twins.mine))]
    assert twins.ours[0].steps == counts


@needs_torch
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.endswith(", all")])
def test_a_cleared_state_is_that_of_a_new_optimizer(rule: str) -> None:
    m = model()
    twins = twins_under(rule, m)
    for t in range(6):
        if t == 3:
            for opt in twins.optimizers:
                opt.state.clear()
        step(twins, m, t)
    twins.compare()
    assert set(twins.ours[0].steps) == {3}


def test_the_state_of_one_parameter_is_in_the_state_dict() -> None:
    opt = optim.SGD(model().parameters(), momentum=0.9)
    with pytest.raises(KeyError, match=r"momentum_buffer.*state_dict\(\)\['state'\]\[i\]"):
        opt.state[opt.parameters[0]]


@needs_torch
@pytest.mark.parametrize(
    "rule", ["adagrad, all", "adamax, all", "asgd, all", "nadam, all", "rprop, all"]
)
def test_states_are_pytorchs(rule: str) -> None:
    """Also the average of ASGD, by which no step goes."""
    m = model()
    twins = twins_under(rule, m)
    for t in range(STEPS):
        step(twins, m, t)
    (opt,), (oracle,) = twins.ours, twins.oracles
    state = opt.state_dict()["state"]
    for i, q in enumerate(twins.theirs):
        for name in opt.state_names:
            np.testing.assert_allclose(state[i][name], oracle.state[q][name].numpy(), rtol=1e-12)


@needs_torch
@pytest.mark.parametrize("rule", ["momentum, decay", "adamw, all"])
def test_two_optimizers_over_halves_of_a_model(rule: str) -> None:
    m = model()
    twins = twins_under(rule, m, halves=2)
    for t in range(STEPS):
        if t == 5:
            m.to(np.float64)  # one store now, in place of two
        step(twins, m, t, in_some_steps)
    twins.compare()


@needs_torch
@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_an_optimizer_follows_a_model_to_another_type(rule: str) -> None:
    """Its state too: what follows is exact in float64."""
    m = model("float32")
    twins = twins_under(rule, m)
    m.to(np.float64)
    for q in twins.theirs:
        q.data = q.data.double()
    for t in range(STEPS):
        step(twins, m, t)
    twins.compare()
    assert {s.dtype.name for s in twins.ours[0].state.values()} == {"float64"}


def trained(opt: optim.Optimizer, m: nn.Module, t: int = 0) -> None:
    for p, g in zip(m.parameters(), gradients(m, t), strict=True):
        p.grad = g
    opt.step()


def test_a_step_leaves_graphs_of_parameters_without_gradients() -> None:
    heads = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = optim.SGD([p for h in heads for p in h.parameters()], lr=0.1)
    first, second = (h(nnmpi.tensor(np.ones((1, 2), "float32"))).sum() for h in heads)
    first.backward()
    opt.step()  # the second head has no gradient yet, and stays as it is
    second.backward()
    assert heads[1].weight.grad.tolist() == [[1, 1], [1, 1]]


REFUSED: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "nothing": (lambda ps: optim.SGD([], lr=0.1), ("at least one parameter",)),
    "twice": (lambda ps: optim.SGD([*ps, ps[0]], lr=0.1), ("twice",)),
    "rate": (lambda ps: optim.Adam(ps, lr=-0.1), ("lr -0.1", "at least 0")),
    "no rate": (lambda ps: optim.SGD(ps, lr=float("nan")), ("lr nan",)),
    "momentum": (lambda ps: optim.SGD(ps, 0.1, momentum=-0.5), ("momentum -0.5",)),
    "nesterov": (lambda ps: optim.SGD(ps, 0.1, nesterov=True), ("nesterov", "momentum")),
    "dampened nesterov": (
        lambda ps: optim.SGD(ps, 0.1, 0.9, 0.1, nesterov=True),
        ("nesterov", "no dampening"),
    ),
    "decay": (lambda ps: optim.AdamW(ps, weight_decay=-1), ("weight_decay -1",)),
    "decay of rmsprop": (lambda ps: optim.RMSprop(ps, weight_decay=-1), ("weight_decay -1",)),
    "decay of adadelta": (lambda ps: optim.Adadelta(ps, weight_decay=-1), ("weight_decay -1",)),
    "betas": (lambda ps: optim.Adam(ps, betas=(0.9, 1.0)), ("(0.9, 1.0)", "less than 1")),
    "eps": (lambda ps: optim.Adam(ps, eps=0.0), ("eps 0", "above 0")),
    "alpha": (lambda ps: optim.RMSprop(ps, alpha=1.5), ("alpha 1.5", "at most 1")),
    "etas": (lambda ps: optim.Rprop(ps, etas=(0.5, 0.9)), ("etas (0.5, 0.9)", "one above 1")),
    "eps of rmsprop": (lambda ps: optim.RMSprop(ps, eps=0.0), ("eps 0", "above 0")),
    "a tensor": (
        lambda ps: optim.SGD([*ps, ps[0] * 2], 0.1),
        ("is a result", "detach"),
    ),
    "a name": (lambda ps: optim.SGD(["weight"], 0.1), ("nn.Parameter", "entry 0", "str")),
    "types": (lambda ps: optim.SGD([*ps, nn.Parameter([1.0])], 0.1), ("float32, float64",)),
    "no gradients": (lambda ps: optim.clip_grad_norm(ps, 1.0), ("after backward",)),
    "norm": (lambda ps: optim.clip_grad_norm(ps, 0.0), ("max_norm 0.0", "above 0")),
    "order of a norm": (lambda ps: nn.utils.clip_grad_norm_(ps, 1.0, -1), ("norm_type -1",)),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_bad_options_give_one_line(case: Any) -> None:
    call, words = case
    with refused(*words):
        call([*model().parameters()])


@needs_torch
@pytest.mark.parametrize(
    "name", ["SGD", "Adam", "AdamW", "RMSprop", "Muon", "Adamax", "ASGD", "Rprop"]
)
def test_arguments_by_position_are_in_the_order_of_pytorch(name: str) -> None:
    """So that optim.SGD(ps, 0.1, 0.9, 0, 5e-4) has a dampening of 0."""
    ours, theirs = (
        [
            (p.name if i else "params")
            for i, p in enumerate(inspect.signature(getattr(library, name)).parameters.values())
            if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        ]
        for library in (optim, pytorch().optim)
    )
    assert ours == theirs[: len(ours)]


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("SGD", "momentum", 0.5),
        ("Adam", "amsgrad", True),
        ("RMSprop", "momentum", 0.5),
        ("RMSprop", "centered", True),
    ],
)
def test_an_option_needs_the_sum_that_the_optimizer_was_created_with(
    name: str, option: str, value: Any
) -> None:
    m = model()
    opt = getattr(optim, name)(m.parameters(), lr=0.1)
    trained(opt, m)
    (group,) = opt.param_groups
    usual, group[option] = group[option], value
    before = [p.data.copy() for p in m.parameters()]
    with refused(f"{option}={value} needs a state array", f"create it with {option}={value}"):
        trained(opt, m)
    for p, old in zip(m.parameters(), before, strict=True):
        np.testing.assert_array_equal(p.data, old)
    assert set(opt.steps) == {1}
    group[option] = usual
    trained(opt, m)


@needs_torch
@pytest.mark.parametrize("wrong", [None, np.inf, np.nan])
@pytest.mark.parametrize(("max_norm", "order"), [(0.5, 2), (1e9, 2.0), (0.1, np.inf), (0.5, 3)])
def test_clipping_is_pytorchs(max_norm: float, order: float, wrong: float | None) -> None:
    m = model()
    twins = twins_under("sgd", m)
    step(twins, m, 0, lambda t, i: i != 2)  # one without a gradient
    if wrong is not None:
        twins.mine[1].grad[0] = twins.theirs[1].grad[0] = wrong
    with np.errstate(invalid="ignore"):  # inf * 0
        norm = nn.utils.clip_grad_norm_(twins.mine, max_norm, order)
    expected = pytorch().nn.utils.clip_grad_norm_(twins.theirs, max_norm, order)
    np.testing.assert_allclose(norm, float(expected), rtol=1e-13)
    assert norm.shape == ()
    assert twins.mine[2].grad is None
    for p, q in zip(twins.mine, twins.theirs, strict=True):
        if q.grad is not None:
            np.testing.assert_allclose(p.grad, q.grad.numpy(), rtol=1e-13)


def test_clipping_by_a_norm_that_is_no_number_may_be_refused() -> None:
    p = nn.Parameter(np.ones(2))
    p.grad = np.array([np.inf, 1.0])
    with pytest.raises(RuntimeError, match="is inf, not finite"):
        nn.utils.clip_grad_norm_(p, 1.0, error_if_nonfinite=True)
    assert p.grad.tolist() == [np.inf, 1.0]

"""The state of one optimizer: names, shapes, and training that goes on from it."""

import copy
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import ON_DEVICE
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim
from nnmpi.arrays import backend

OF_ADAM = ("gradient_sum", "squared_gradient_sum")
RULES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "sgd": ("SGD", {"lr": 0.1}, ()),
    "momentum": ("SGD", {"lr": 0.1, "momentum": 0.9}, ("momentum_buffer",)),
    "adam": ("Adam", {"weight_decay": 0.1}, OF_ADAM),
    "adamw": ("AdamW", {}, OF_ADAM),
    "amsgrad": ("Adam", {"amsgrad": True}, (*OF_ADAM, "largest_squared_gradient_sum")),
    "rmsprop": ("RMSprop", {}, ("square_avg",)),
    "rmsprop, all": (
        "RMSprop",
        {"momentum": 0.5, "centered": True},
        ("square_avg", "momentum_buffer", "grad_avg"),
    ),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.3}, ("sum",)),
    "nadam": ("NAdam", {}, ("exp_avg", "exp_avg_sq", "mu_product")),
    "adamax": ("Adamax", {}, ("exp_avg", "exp_inf")),
    "asgd": ("ASGD", {"lambd": 0.1, "t0": 2}, ("ax", "eta")),
    "rprop": ("Rprop", {}, ("prev", "step_size")),
}


def model(dtype: str = "float32") -> nn.Sequential:
    """A weight whose memory is not in the order of its axes, and sizes that leave padding."""
    with nnmpi.seeded(3):
        return nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 5)).to(dtype)


def made(rule: str, dtype: str = "float32") -> tuple[nn.Module, optim.Optimizer]:
    name, options, _ = RULES[rule]
    m = model(dtype)
    return m, getattr(optim, name)(m.parameters(), **options)


def train(m: nn.Module, opt: optim.Optimizer, steps: range) -> None:
    """The last parameter has a gradient in every second step only."""
    for t in steps:
        rng = np.random.default_rng(t)
        opt.zero_grad()
        for p in [*m.parameters()][: 4 if t % 2 else 3]:
            p.grad = backend.of(p._array).asarray(rng.standard_normal(p.shape))
        opt.step()


def same_state(one: nn.Module | optim.Optimizer, other: nn.Module | optim.Optimizer) -> None:
    states = [x.state_dict() if isinstance(x, nn.Module) else x.named_state() for x in (one, other)]
    assert states[0].keys() == states[1].keys()
    for name, value in states[0].items():
        np.testing.assert_array_equal(states[1][name], value, name, strict=True)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("in_file", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_training_goes_on_with_the_same_bits(
    rule: str, in_file: bool, dtype: str, tmp_path: Any
) -> None:
    """A state by name is a copy, which further steps leave as it is."""
    m, opt = made(rule, dtype)
    train(m, opt, range(5))
    state, weights = opt.named_state(), copy.deepcopy(m.state_dict())
    names = (*RULES[rule][2], "step")
    assert list(state) == [f"{path}.{name}" for path in weights for name in names]
    for path, weight in weights.items():
        for name in names[:-1]:
            found = state[f"{path}.{name}"]
            assert (found.shape, found.dtype) == (weight.shape, weight.dtype)
            assert found.flags.c_contiguous
            assert found.any()
    assert [int(n) for name, n in state.items() if name.endswith("step")] == [5, 5, 5, 2]

    train(m, opt, range(5, 9))
    if in_file:
        nnmpi.save(state, tmp_path / "state.safetensors")
        state = nnmpi.load(tmp_path / "state.safetensors")
    other, again = made(rule, dtype)
    train(other, again, range(3, 5))  # it has been used before
    other.load_state_dict(weights)
    again.load_state_dict(state)
    train(other, again, range(5, 9))
    same_state(m, other)
    same_state(opt, again)


def test_an_optimizer_may_have_some_parameters_only() -> None:
    m = model()
    opt = optim.SGD(m[2].parameters(), lr=0.1, momentum=0.5)
    assert [*opt.named_state()] == [
        f"2.{name}" for p in ("weight", "bias") for name in (f"{p}.momentum_buffer", f"{p}.step")
    ]


def test_what_does_not_fit_is_refused() -> None:
    m, opt = made("momentum")
    train(m, opt, range(2))
    state = opt.named_state()
    _, adam = made("adam")
    with refused("only the state has 0.weight.momentum_buffer", "only the optimizer has 0.weight"):
        adam.load_state_dict(state)
    with refused("only the state has 0.weight.momentum_buffer"):
        made("sgd")[1].load_state_dict(state)
    wrong = state["0.weight.momentum_buffer"].T
    with refused("momentum_buffer has shape (3, 3, 2, 3), the optimizer needs (3, 2, 3, 3)"):
        opt.load_state_dict({**state, "0.weight.momentum_buffer": wrong})
    for count in (-1, 0.5, np.nan):
        with refused(f"2.bias.step is {count}", "at least 0"):
            opt.load_state_dict({**state, "2.bias.step": count})
    for name, value in opt.named_state().items():
        np.testing.assert_array_equal(value, state[name])


def test_parameters_of_two_models_cannot_be_named() -> None:
    both = nn.Linear(2, 3), nn.Linear(2, 3)
    opt = optim.Adam([p for m in both for p in m.parameters()])
    with refused("parameters 0 and 2", "'weight'", "one module"):
        opt.named_state()
    with refused("parameters 0 and 2"):
        opt.load_state_dict({})


def nested(opt: optim.Optimizer) -> list[Any]:
    """The state of an optimizer, as lists that can be compared."""
    state = opt.state_dict()
    of_each = [(i, [(k, v.tolist()) for k, v in s.items()]) for i, s in state["state"].items()]
    return [of_each, state["param_groups"]]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("in_file", [False, True])
def test_a_state_by_number_has_the_options_too(rule: str, in_file: bool, tmp_path: Any) -> None:
    m, opt = made(rule)
    train(m, opt, range(5))
    opt.param_groups[0]["lr"] = 0.125
    state = opt.state_dict()
    assert [*state["state"]] == [0, 1, 2, 3]
    assert [int(s["step"]) for s in state["state"].values()] == [5, 5, 5, 2]
    assert state["param_groups"][0]["params"] == [0, 1, 2, 3]
    if in_file:
        nnmpi.save(state, tmp_path / "state.safetensors")
        state = nnmpi.load(tmp_path / "state.safetensors")
    other, again = made(rule)
    other.load_state_dict(m.state_dict())
    again.load_state_dict(state)
    assert again.param_groups[0]["lr"] == 0.125
    assert nested(again) == nested(opt)
    for one, its in ((m, opt), (other, again)):
        train(one, its, range(5, 9))
    same_state(m, other)


def test_a_state_by_number_needs_no_paths() -> None:
    both = nn.Linear(2, 3), nn.Linear(2, 3)
    opt = optim.SGD([{"params": layer.parameters()} for layer in both], lr=0.1, momentum=0.5)
    state = opt.state_dict()
    assert [group["params"] for group in state["param_groups"]] == [[0, 1], [2, 3]]
    opt.load_state_dict(state)
    with refused("groups with [2, 2] parameters, this optimizer has groups with [4]"):
        optim.SGD([p for m in both for p in m.parameters()], lr=0.1).load_state_dict(state)


# ---- the memory of a state dict


def test_a_kept_state_has_the_new_values_and_a_copy_the_old() -> None:
    m, opt = made("adam")
    train(m, opt, range(3))
    state = opt.state_dict()
    old = copy.deepcopy(state)
    tensors = [t for of_one in old["state"].values() for t in of_one.values()]
    assert {type(t) for t in tensors} == {nnmpi.Tensor}
    was = nested(opt)
    train(m, opt, range(3, 5))
    assert [int(s["step"]) for s in state["state"].values()] == [5, 5, 5, 2]
    for i, of_one in opt.state_dict()["state"].items():
        for name, t in of_one.items():
            np.testing.assert_array_equal(state["state"][i][name], t)
            assert not np.array_equal(old["state"][i][name], t)
    opt.load_state_dict(old)
    assert nested(opt) == was


@pytest.mark.parametrize("on", [backend.CPU, ON_DEVICE])
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.99)])
def test_its_own_state_takes_back_only_the_options(betas: tuple[float, float], on: Any) -> None:
    """Also where the values depend on the options, as those of Adam on its betas."""
    (m, opt), (other, again) = made("adam"), made("adam")
    for part, its in ((m, opt), (other, again)):
        part.to(on=on)
        train(part, its, range(3))
    state = opt.state_dict()
    assert state["state"][0]["gradient_sum"].device == on
    opt.param_groups[0].update(betas=betas, lr=0.5)
    assert state["state"][0]["gradient_sum"].numpy().any()  # in the scale of these betas
    opt.load_state_dict(state)
    for found, wanted in zip(tensors_of(opt), tensors_of(again), strict=True):
        for name, t in found.items():
            np.testing.assert_allclose(t, wanted[name], rtol=1e-6, err_msg=name)
    assert opt.param_groups[0]["betas"] == (0.9, 0.999)
    assert opt.param_groups[0]["lr"] == again.param_groups[0]["lr"]


def tensors_of(opt: optim.Optimizer) -> list[dict[str, Any]]:
    return [*opt.state_dict()["state"].values()]


def test_a_step_count_is_read_only() -> None:
    m, opt = made("momentum")
    train(m, opt, range(2))
    with pytest.raises(RuntimeError, match="would not reach the optimizer"):
        opt.state_dict()["state"][0]["step"].zero_()


def trained_by(n: Any, how: str) -> list[Any]:
    """Values and momenta after steps of a program that uses a state dict, in either library."""
    p, q = (n.nn.Parameter(n.tensor(np.ones(shape, "float32"))) for shape in ((2, 3), (4,)))
    opt = n.optim.SGD([p, q], lr=0.125, momentum=0.5)

    def steps(count: int) -> None:
        for k in range(count):
            p.grad, q.grad = (n.tensor(np.full(t.shape, k + 1, "float32")) for t in (p, q))
            opt.step()

    def momenta(state: Any) -> list[Any]:
        return [state["state"][i]["momentum_buffer"] for i in (0, 1)]

    steps(2)
    kept = opt.state_dict()
    if how == "copied":
        kept = copy.deepcopy(kept)
    steps(1)
    if how == "written":
        momenta(kept)[0].mul_(4)
        momenta(kept)[1][1:3] = 7.0
    elif how != "kept":
        opt.param_groups[0]["lr"] = 1.0
        opt.load_state_dict(kept)
    steps(1)
    found = [p.detach(), q.detach(), *momenta(opt.state_dict())]
    return [*found, *(momenta(kept) if how == "kept" else [])]


@needs_torch
@pytest.mark.parametrize("how", ["kept", "written", "loaded", "copied"])
def test_programs_find_what_they_find_in_pytorch(how: str) -> None:
    for ours, theirs in zip(trained_by(nnmpi, how), trained_by(pytorch(), how), strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)

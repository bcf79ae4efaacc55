"""Training that PyTorch's optimizers began, and that goes on from their state dicts."""

import io
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi

pytestmark = [needs_torch, pytest.mark.all_add_ons]

RNG = np.random.default_rng(0)
VALUES = [RNG.standard_normal(s).astype("float32") for s in ((6, 4), (6,), (2, 6), (2,))]
X, Y = (
    RNG.standard_normal((16, 4)).astype("float32"),
    RNG.standard_normal((16, 2)).astype("float32"),
)
AMSGRAD = {"amsgrad": True, "betas": (0.8, 0.99)}
BEGUN: list[tuple[str, dict[str, Any]]] = [
    ("Adam", AMSGRAD),
    ("Adam", {"weight_decay": 0.1}),
    ("AdamW", {}),
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.8, "dampening": 0.5}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    ("ASGD", {"t0": 2.0, "lambd": 0.1}),
    ("RMSprop", {"centered": True, "momentum": 0.9}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "lr_decay": 0.1}),
    ("Adadelta", {}),
    ("Adamax", {}),
    ("RAdam", {}),
    ("Rprop", {}),
]


def build(T: Any) -> Any:
    model = T.nn.Sequential(T.nn.Linear(4, 6), T.nn.Tanh(), T.nn.Linear(6, 2))
    with T.no_grad():
        for p, value in zip(model.parameters(), VALUES, strict=True):
            p.copy_(T.from_numpy(value))
    return model


def loss_of_step(T: Any, model: Any, opt: Any) -> float:
    opt.zero_grad()
    loss = ((model(T.from_numpy(X)) - T.from_numpy(Y)) ** 2).mean()
    loss.backward()
    opt.step()
    return float(loss.item())


def begun(name: str, options: dict[str, Any], steps: int = 3) -> tuple[Any, Any, Any]:
    """A model and an optimizer of PyTorch after some steps, and what it saves of both."""
    torch = pytorch()
    model = build(torch)
    opt = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    for _ in range(steps):
        loss_of_step(torch, model, opt)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    return model, opt, nnmpi.load(file)


@pytest.mark.parametrize(("name", "options"), BEGUN, ids=str)
def test_it_goes_on_as_in_pytorch(name: str, options: dict[str, Any]) -> None:
    torch, (theirs, its_opt, saved) = pytorch(), begun(name, options)
    model = build(nnmpi)
    opt = getattr(nnmpi.optim, name)(model.parameters(), lr=0.5)  # options come from the state
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    for _ in range(5):
        ours = loss_of_step(nnmpi, model, opt)
        np.testing.assert_allclose(ours, loss_of_step(torch, theirs, its_opt), 2e-6)
    assert "foreach" not in opt.param_groups[0]
    again = getattr(nnmpi.optim, name)(build(nnmpi).parameters(), **options)
    again.load_state_dict(opt.state_dict())
    assert again.param_groups[0]["lr"] == opt.param_groups[0]["lr"]


def test_a_parameter_that_was_not_updated_starts_anew() -> None:
    _, _, saved = begun("Adam", {}, steps=2)
    del saved["opt"]["state"][2]
    opt = nnmpi.optim.Adam(build(nnmpi).parameters())
    opt.load_state_dict(saved["opt"])
    assert opt.steps == [2, 2, 0, 2]
    assert not opt.state_dict()["state"][2]["gradient_sum"].any()


def test_states_of_other_classes_are_refused() -> None:
    parameters = [*build(nnmpi).parameters()]
    with refused("only the state has 0.momentum_buffer"):
        nnmpi.optim.Adam(parameters).load_state_dict(begun("SGD", {"momentum": 0.9})[2]["opt"])
    with refused("PyTorch's AdamW", "make this optimizer by optim.AdamW"):
        nnmpi.optim.Adam(parameters).load_state_dict(begun("AdamW", {})[2]["opt"])
    with refused("groups with [4] parameters, this optimizer has groups with [3]"):
        nnmpi.optim.Adam(parameters[:3]).load_state_dict(begun("Adam", {})[2]["opt"])

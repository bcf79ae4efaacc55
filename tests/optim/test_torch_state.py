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
VALUES = [RNG.standard_normal(s) for s in ((6, 4), (6,), (2, 6), (2,))]
X, Y = RNG.standard_normal((16, 4)), RNG.standard_normal((16, 2))
BEGUN: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"amsgrad": True, "betas": (0.8, 0.99)}),
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
    model = T.nn.Sequential(T.nn.Linear(4, 6), T.nn.Tanh(), T.nn.Linear(6, 2)).double()
    with T.no_grad():
        for p, value in zip(model.parameters(), VALUES, strict=True):
            p.copy_(T.from_numpy(value))
    return model


def train(T: Any, model: Any, opt: Any, rates: Any, steps: int) -> None:
    for _ in range(steps):
        opt.zero_grad()
        ((model(T.from_numpy(X)) - T.from_numpy(Y)) ** 2).mean().backward()
        opt.step()
        rates.step()


def begun(name: str, options: dict[str, Any], steps: int = 3) -> tuple[list[Any], list[Any]]:
    """A model, an optimizer and a schedule of PyTorch after some steps, and their saved states."""
    torch = pytorch()
    model = build(torch)
    opt = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    parts = [model, opt, torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)]
    train(torch, *parts, steps=steps)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    return parts, nnmpi.load(file)


@pytest.mark.parametrize(("name", "options"), BEGUN, ids=str)
def test_it_goes_on_as_in_pytorch(name: str, options: dict[str, Any]) -> None:
    theirs, saved = begun(name, options)
    model = build(nnmpi)
    opt = getattr(nnmpi.optim, name)(model.parameters(), lr=0.5)  # options come from the state
    ours = [model, opt, nnmpi.optim.lr_scheduler.CosineAnnealingLR(opt, 10)]
    for part, state in zip(ours, saved, strict=True):
        part.load_state_dict(state)
    train(nnmpi, *ours, steps=5)
    train(pytorch(), *theirs, steps=5)
    rtol = 1e-6 if name in ("ASGD", "NAdam") else 1e-9  # which have numbers of float32 in PyTorch
    for p, q in zip(model.parameters(), theirs[0].parameters(), strict=True):
        np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol)
    assert "foreach" not in opt.param_groups[0]
    again = getattr(nnmpi.optim, name)(build(nnmpi).parameters(), **options)
    again.load_state_dict(opt.state_dict())
    assert again.param_groups[0]["lr"] == opt.param_groups[0]["lr"]


def test_a_parameter_that_was_not_updated_starts_anew() -> None:
    _, (_, state, _) = begun("Adam", {}, steps=2)
    del state["state"][2]
    opt = nnmpi.optim.Adam(build(nnmpi).parameters())
    opt.load_state_dict(state)
    assert opt.steps == [2, 2, 0, 2]
    assert not opt.state_dict()["state"][2]["gradient_sum"].any()


def test_states_of_other_classes_are_refused() -> None:
    parameters = [*build(nnmpi).parameters()]
    for options, given, words in (
        (("SGD", {"momentum": 0.9}), parameters, ("only the state has 0.momentum_buffer",)),
        (("AdamW", {}), parameters, ("PyTorch's AdamW", "make this optimizer by optim.AdamW")),
        (("Adam", {}), parameters[:3], ("[4] parameters, this optimizer has groups with [3]",)),
    ):
        with refused(*words):
            nnmpi.optim.Adam(given).load_state_dict(begun(*options)[1][1])

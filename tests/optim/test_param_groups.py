"""Groups of parameters against PyTorch's, and how their options are read and written."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim

STEPS = 24


def model() -> nn.Sequential:
    """A weight whose memory is not in the order of its axes, and sizes that leave gaps."""
    layers = nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 2)
    return nn.Sequential(*layers).to("float64")


def split_up(parameters: list[Any], *options: dict[str, Any]) -> list[dict[str, Any]]:
    """Weights and biases in turn, so that the groups of neighbours differ."""
    return [{"params": iter(parameters[i :: len(options)]), **own} for i, own in enumerate(options)]


RULES: dict[str, tuple[str, dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "sgd": ("SGD", {"lr": 0.1}, ({"weight_decay": 0.1}, {"lr": 0.01})),
    "sgd, momentum of some": (
        "SGD",
        {"lr": 0.05},
        ({"momentum": 0.9, "nesterov": True}, {"lr": 0.2}, {"momentum": 0.5}),
    ),
    "adam": ("Adam", {}, ({"lr": 0.05, "betas": (0.8, 0.95)}, {"weight_decay": 0.1})),
    "adam, amsgrad of some": ("Adam", {"lr": 0.02}, ({"amsgrad": True}, {"eps": 1e-3})),
    "adamw": ("AdamW", {"lr": 0.01}, ({"weight_decay": 0.5}, {"weight_decay": 0.0})),
    "rmsprop": (
        "RMSprop",
        {"lr": 0.01},
        ({"momentum": 0.9}, {"centered": True, "eps": 1e-2}, {"alpha": 0.5, "weight_decay": 0.1}),
    ),
}


@needs_torch
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_trajectories_are_pytorchs(rule: str, gaps: bool) -> None:
    """While the rates fall as in a loop over param_groups, and one of them by itself."""
    torch, (name, options, groups) = pytorch(), RULES[rule]
    mine = list(model().parameters())
    theirs = [torch.nn.Parameter(torch.tensor(p.array)) for p in mine]
    optimizers = [
        getattr(library, name)(split_up(parameters, *groups), **options)
        for library, parameters in ((optim, mine), (torch.optim, theirs))
    ]
    for t in range(STEPS):
        for opt in optimizers:
            opt.zero_grad(set_to_none=t % 2 == 0)
            for g in opt.param_groups:
                g["lr"] *= 0.95
            opt.param_groups[-1]["weight_decay"] = 0.01 * t
        rng = np.random.default_rng(t)
        for i, (p, q) in enumerate(zip(mine, theirs, strict=True)):
            g = rng.standard_normal(p.shape)
            if not gaps or (t + i) % 3:
                p.grad, q.grad = g, torch.tensor(g)
        for opt in optimizers:
            opt.step()
        for p, q in zip(mine, theirs, strict=True):
            expected = q.detach().numpy()
            assert np.abs(p.data - expected).max() <= 1e-13 * np.abs(expected).max() * STEPS


@needs_torch
def test_betas_that_change_between_steps_are_pytorchs() -> None:
    """In one group; the sums, which have a factor of 1 / (1 - beta), are those of the new ones."""
    torch, mine = pytorch(), list(model().parameters())
    theirs = [torch.nn.Parameter(torch.tensor(p.array)) for p in mine]
    ours, other = (
        library.Adam(split_up(parameters, {}, {"lr": 0.05}), lr=0.01, amsgrad=True)
        for library, parameters in ((optim, mine), (torch.optim, theirs))
    )
    for t in range(12):
        rng = np.random.default_rng(t)
        for p, q in zip(mine, theirs, strict=True):
            p.grad = rng.standard_normal(p.shape)
            q.grad = torch.tensor(p.grad_array)
        for opt in (ours, other):
            opt.param_groups[1]["betas"] = (0.5, 0.9) if t % 4 < 2 else (0.95, 0.99)
            opt.step()
        for p, q in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-11)
    state = ours.named_state()
    ours.param_groups[1]["betas"] = (0.5, 0.99)
    for name, old, now in (("gradient_sum", 0.95, 0.5), ("squared_gradient_sum", 0.99, 0.99)):
        before, after = (s[f"0.bias.{name}"] for s in (state, ours.named_state()))
        np.testing.assert_allclose(after * (1 - now), before * (1 - old), rtol=1e-13)
    ours.param_groups[0]["betas"] = (1.0, 0.9)
    with refused("betas (1.0, 0.9)"):
        ours.step()


def test_one_rate_for_all_groups() -> None:
    weights, biases = (list(model().parameters())[i::2] for i in range(2))
    opt = optim.SGD([{"params": weights, "lr": 0.1}, {"params": biases}], lr=0.2)
    assert [g["lr"] for g in opt.param_groups] == [0.1, 0.2]
    with refused("lr differs between the groups", "param_groups[i]['lr']"):
        _ = opt.lr
    opt.lr = 0.3
    assert [g["lr"] for g in opt.param_groups] == [0.3, 0.3]
    assert (opt.lr, opt.momentum) == (0.3, 0.0)


def test_a_state_fits_whatever_the_groups_are() -> None:
    def made(grouped: bool) -> tuple[nn.Module, optim.Optimizer]:
        with nnmpi.seeded(1):
            m = model()
        parameters = list(m.parameters())
        return m, optim.RMSprop(split_up(parameters, {}, {}) if grouped else parameters)

    (m, opt), (other, again) = made(False), made(True)
    for t in range(4):
        for net, o in ((m, opt), (other, again)):
            for p in net.parameters():
                p.grad = np.random.default_rng([t, p.size]).standard_normal(p.shape)
            o.step()
        if t == 1:
            state = again.named_state()
            assert sorted(state) == sorted(opt.named_state())
            other, again = made(True)
            other.load_state_dict(m.state_dict())
            again.load_state_dict(opt.named_state())
    for name, weight in m.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], weight, name)


def test_gradients_of_zeros_still_move_what_has_momentum() -> None:
    m = model()
    opt = optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    for p in m.parameters():
        p.grad = np.ones(p.shape)
    opt.step()
    before = m[2].weight.data.copy()
    opt.zero_grad(set_to_none=False)
    assert not m[2].weight.grad.any()
    opt.step()
    assert (m[2].weight.data != before).all()
    opt.zero_grad()
    assert m[2].weight.grad is None


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (lambda ps: [{"params": ps, "learning_rate": 1}], ("'learning_rate'", "lr, momentum")),
        (lambda ps: [{"lr": 0.1}], ("group 0", "without 'params'")),
        (lambda ps: [{"params": ps[:1]}, ps[1]], ("group 1", "Parameter")),
        (lambda ps: [{"params": ps[:2]}, {"params": ps[1:]}], ("twice",)),
        (lambda ps: [{"params": ps, "momentum": -1}], ("momentum -1",)),
        (lambda ps: [{"params": ps[:2]}, {"params": ps[2:], "lr": -1}], ("lr -1",)),
        (lambda ps: [{"params": []}], ("at least one parameter",)),
        (lambda ps: [{"params": ["weight"]}], ("entry 0", "str")),
        (lambda ps: {"params": ps}, ("not a dict", "[{'params': [...]")),
        (lambda ps: ps[0], ("not a Parameter", "[layer.weight]")),
        (lambda ps: model()[2], ("not a Linear", "model.parameters()")),
    ],
)
def test_bad_groups_give_one_line(groups: Any, words: tuple[str, ...]) -> None:
    with refused(*words):
        optim.SGD(groups(list(model().parameters())), lr=0.1)


ADDED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.1, "momentum": 0.9}, {"lr": 0.01}),
    "sgd, momentum of the new one": ("SGD", {"lr": 0.1}, {"momentum": 0.9}),
    "adam": ("Adam", {"lr": 0.02}, {"betas": (0.5, 0.9), "amsgrad": True}),
    "rmsprop": ("RMSprop", {}, {"centered": True}),
}


@needs_torch
@pytest.mark.parametrize("case", ADDED)
def test_a_group_that_is_added_later_is_pytorchs(case: str) -> None:
    """Sums and step counts of the others go on; betas that changed just before count too."""
    torch, (name, options, group) = pytorch(), ADDED[case]
    mine = list(model().parameters())
    theirs = [torch.nn.Parameter(torch.tensor(p.array)) for p in mine]
    ours, other = (
        getattr(library, name)(parameters[:3], **options)
        for library, parameters in ((optim, mine), (torch.optim, theirs))
    )
    rng = np.random.default_rng(0)
    for t in range(12):
        if t == 4:
            for opt, parameters in ((ours, mine), (other, theirs)):
                if "betas" in opt.param_groups[0]:
                    opt.param_groups[0]["betas"] = (0.7, 0.95)
                opt.add_param_group({"params": parameters[3:], **group})
        for p, q in zip(mine, theirs, strict=True):
            p.grad = rng.standard_normal(p.shape)
            q.grad = torch.tensor(np.ascontiguousarray(p.grad))
        ours.step()
        other.step()
        for p, q in zip(mine, theirs, strict=True):
            np.testing.assert_allclose(p.data, q.detach().numpy(), rtol=1e-10, atol=1e-12)
    assert ours.steps == [12] * 3 + [8] * 3


def test_a_group_that_is_refused_changes_nothing() -> None:
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    opt = optim.SGD(first.parameters(), lr=0.1)
    for group, words in (
        ({"params": first.parameters()}, ("twice",)),
        ({"params": second.parameters(), "lr": -1}, ("lr -1",)),
        ({"params": second.parameters(), "beta": 1}, ("'beta'",)),
    ):
        with refused(*words):
            opt.add_param_group(group)
        assert len(opt.param_groups) == 1
        assert len(opt.parameters) == 2

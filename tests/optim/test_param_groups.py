"""Groups of parameters against PyTorch's, and how their options are read and written."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch
from helpers.twins import Twins

import nnmpi
from nnmpi import nn, optim

STEPS = 24


def model() -> nn.Sequential:
    """A weight whose memory is not in the order of its axes, and sizes that leave gaps."""
    layers = nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 2)
    return nn.Sequential(*layers).to("float64")


def gradients(twins: Twins, step: int) -> list[np.ndarray]:
    rng = np.random.default_rng(step)
    return [rng.standard_normal(p.shape) for p in twins.mine]


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
    name, options, groups = RULES[rule]
    twins = Twins(
        model().parameters(),
        lambda library, ps: [getattr(library, name)(split_up(ps, *groups), **options)],
    )
    for t in range(STEPS):
        for opt in twins.optimizers:
            opt.zero_grad(set_to_none=t % 2 == 0)
            for g in opt.param_groups:
                g["lr"] *= 0.95
            opt.param_groups[-1]["weight_decay"] = 0.01 * t
        drawn = gradients(twins, t)
        twins.step(g if not gaps or (t + i) % 3 else None for i, g in enumerate(drawn))
        twins.compare()


@needs_torch
def test_betas_that_change_between_steps_are_pytorchs() -> None:
    """In one group; the sums, which have a factor of 1 / (1 - beta), are those of the new ones."""
    twins = Twins(
        model().parameters(),
        lambda library, ps: [
            library.Adam(split_up(ps, {}, {"lr": 0.05}), lr=0.01, amsgrad=True),
        ],
    )
    for t in range(12):
        for opt in twins.optimizers:
            opt.param_groups[1]["betas"] = (0.5, 0.9) if t % 4 < 2 else (0.95, 0.99)
        twins.step(gradients(twins, t))
        twins.compare()
    (ours,) = twins.ours
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
    name, options, group = ADDED[case]
    twins = Twins(
        model().parameters(), lambda library, ps: [getattr(library, name)(ps[:3], **options)]
    )
    for t in range(12):
        if t == 4:
            for opt, ps in zip(twins.optimizers, (twins.mine, twins.theirs), strict=True):
                if "betas" in opt.param_groups[0]:
                    opt.param_groups[0]["betas"] = (0.7, 0.95)
                opt.add_param_group({"params": ps[3:], **group})
        twins.step(gradients(twins, t))
        twins.compare()
    assert twins.ours[0].steps == [12] * 3 + [8] * 3


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

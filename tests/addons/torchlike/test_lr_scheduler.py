"""PyTorch's schedulers of the rate, step by step against PyTorch's."""

import pickle
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn, optim

SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lambda": ("LambdaLR", {"lr_lambda": lambda t: 0.9**t}),
    "lambdas": ("LambdaLR", {"lr_lambda": [lambda t: 0.9**t, lambda t: 1 / (1 + t)]}),
    "products": ("MultiplicativeLR", {"lr_lambda": lambda t: 1 - 1 / (t + 2)}),
    "two products": ("MultiplicativeLR", {"lr_lambda": [lambda t: 0.9, lambda t: 1 / (1 + t)]}),
    "step": ("StepLR", {"step_size": 3}),
    "milestones": ("MultiStepLR", {"milestones": [5, 2, 2], "gamma": 0.5}),
    "exponential": ("ExponentialLR", {"gamma": 0.8}),
    "linear": ("LinearLR", {"start_factor": 0.25, "total_iters": 4}),
    "cosine": ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
    "constant": ("ConstantLR", {"factor": 0.2, "total_iters": 3}),
    "polynomial": ("PolynomialLR", {"total_iters": 6, "power": 2.0}),
    "restarts": ("CosineAnnealingWarmRestarts", {"T_0": 3}),
    "longer restarts": ("CosineAnnealingWarmRestarts", {"T_0": 2, "T_mult": 2, "eta_min": 0.01}),
    "cycles": ("CyclicLR", {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2}),
    "cycles that shrink": (
        "CyclicLR",
        {"base_lr": [0.1, 0.2], "max_lr": 1.0, "step_size_up": 1, "step_size_down": 3}
        | {"mode": "triangular2"},
    ),
    "cycles of powers": (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "mode": "exp_range", "gamma": 0.9},
    ),
    "cycles of a function": (
        "CyclicLR",
        {"base_lr": 0.1, "max_lr": 1.0, "step_size_up": 2, "scale_fn": lambda x: 1 / (x + 1)}
        | {"cycle_momentum": False, "scale_mode": "iterations"},
    ),
    "one cycle": ("OneCycleLR", {"max_lr": 1.0, "total_steps": 10, "cycle_momentum": False}),
    "one cycle, two rates": (
        "OneCycleLR",
        {"max_lr": [1.0, 0.5], "epochs": 3, "steps_per_epoch": 4},
    ),
    "one cycle, linear": (
        "OneCycleLR",
        {"max_lr": 0.2, "total_steps": 11, "anneal_strategy": "linear"},
    ),
    "one cycle, three phases": (
        "OneCycleLR",
        {"max_lr": 0.2, "total_steps": 11, "three_phase": True},
    ),
}


def libraries() -> Any:
    """Layers and optimizers of nnmpi, and those of PyTorch."""
    torch = pytorch()
    return (nn, optim), (torch.nn, torch.optim)


def of_two_groups(layers: Any, library: Any) -> Any:
    """An optimizer whose groups have other rates."""
    a, b = layers.Linear(2, 2), layers.Linear(2, 1)
    groups = [{"params": [*a.parameters()]}, {"params": [*b.parameters()], "lr": 0.3}]
    return library.SGD(groups, lr=0.1)


@needs_torch
@pytest.mark.parametrize("case", SCHEDULERS)
def test_rates_are_pytorchs(case: str) -> None:
    name, options = SCHEDULERS[case]
    both = []
    for layers, library in libraries():
        opt = of_two_groups(layers, library)
        both.append((opt, getattr(library.lr_scheduler, name)(opt, **options)))
    (ours, mine), (_, other) = both
    for _ in range(9):
        np.testing.assert_allclose(mine.get_last_lr(), other.get_last_lr(), rtol=1e-12, atol=1e-15)
        assert [g["lr"] for g in ours.param_groups] == mine.get_last_lr()
        momenta = [[g["momentum"] for g in opt.param_groups] for opt, _ in both]
        np.testing.assert_allclose(*momenta, rtol=1e-12)
        for opt, scheduler in both:
            opt.step()
            scheduler.step()
    state = mine.state_dict()
    mine.step()
    mine.load_state_dict(state)
    assert mine.last_epoch == 9


CHAINS: dict[str, Any] = {
    "two": lambda s, o: [s.ExponentialLR(o, 0.9), s.StepLR(o, 2, 0.5)],
    "the other way round": lambda s, o: [s.StepLR(o, 2, 0.5), s.ExponentialLR(o, 0.9)],
    "warm up": lambda s, o: [s.LinearLR(o, 0.25, 1.0, 4), s.CosineAnnealingLR(o, 12, 0.01)],
    "three": lambda s, o: [
        *(s.ConstantLR(o, 0.2, 3), s.MultiStepLR(o, [2, 4], 0.5)),
        s.PolynomialLR(o, 20, 2.0),
    ],
    "products": lambda s, o: [s.MultiplicativeLR(o, lambda t: 1.1**t), s.StepLR(o, 2)],
    "in one": lambda s, o: [
        s.ChainedScheduler(
            [s.ConstantLR(o, 0.1, 4), s.ExponentialLR(o, 0.9), s.MultiplicativeLR(o, abs)]
        )
    ],
    "in one of another": lambda s, o: [
        s.ExponentialLR(o, 0.9),
        s.ChainedScheduler([s.StepLR(o, 2, 0.5)], optimizer=o),
    ],
    "a function first": lambda s, o: [s.LambdaLR(o, lambda t: 1 / (1 + t)), s.StepLR(o, 2)],
    "one": lambda s, o: [s.CosineAnnealingLR(o, T_max=12, eta_min=0.02)],
    "steps": lambda s, o: [s.StepLR(o, 3)],
    "to the end": lambda s, o: [s.CosineAnnealingLR(o, 4)],
    "warm up, then a cosine": lambda s, o: [
        s.SequentialLR(o, [s.LinearLR(o, 0.1, total_iters=3), s.CosineAnnealingLR(o, 6)], [3])
    ],
    "three in a row": lambda s, o: [
        s.SequentialLR(
            o, [s.ConstantLR(o, 0.5, 9), s.StepLR(o, 2, 0.3), s.ExponentialLR(o, 0.9)], [2, 6]
        )
    ],
    "products, then a constant": lambda s, o: [
        s.SequentialLR(o, [s.MultiplicativeLR(o, lambda t: 0.8), s.ConstantLR(o, 0.5, 2)], [3])
    ],
    "warm up, then restarts": lambda s, o: [
        s.SequentialLR(
            o, [s.LinearLR(o, 0.5, 1.0, 2), s.CosineAnnealingWarmRestarts(o, 2)], milestones=[4]
        )
    ],
}


@needs_torch
@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_and_changed_rates_are_pytorchs(chain: str, is_changed: bool) -> None:
    rates = []
    for layers, library in libraries():
        opt = library.SGD(layers.Linear(2, 2).parameters(), lr=0.1)
        schedulers = CHAINS[chain](library.lr_scheduler, opt)
        found = [opt.param_groups[0]["lr"], *(s.get_last_lr()[0] for s in schedulers)]
        for t in range(10):
            opt.step()
            for scheduler in schedulers:
                scheduler.step()
            if is_changed and t == 1:
                opt.param_groups[0]["lr"] *= 0.3
            found.append(opt.param_groups[0]["lr"])
        rates.append(found)
    np.testing.assert_allclose(*rates, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("floor", [0.0, 0.01, 0.03])
def test_a_change_at_the_lowest_rate_is_added_to_the_next(floor: float) -> None:
    opt = optim.SGD([nn.Parameter(np.ones(1))], lr=0.1)
    scheduler = optim.lr_scheduler.CosineAnnealingLR(opt, T_max=3, eta_min=floor)
    for _ in range(3):
        scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(floor)
    opt.param_groups[0]["lr"] += 0.005
    scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(floor + 0.005 + (0.1 - floor) / 4)


@needs_torch
@pytest.mark.parametrize("rule", ["SGD", "Adam", "RMSprop", "NAdam", "RAdam", "Adamax", "Muon"])
@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_a_cycle_of_momentum_trains_as_pytorchs(rule: str, momentum: float) -> None:
    """Also where the optimizer was made without."""
    x = np.random.default_rng(0).standard_normal((5, 3)).astype("float32")
    weights = []
    for layers, library in libraries():
        layer = layers.Linear(3, 2, bias=False)
        for p in layer.parameters():
            p.data[...] = 0.5
        has_betas = rule in ("Adam", "NAdam", "RAdam", "Adamax")
        options = {} if has_betas else {"momentum": momentum}
        opt = getattr(library, rule)(layer.parameters(), lr=0.1, **options)
        scheduler = library.lr_scheduler.OneCycleLR(opt, 0.1, 12)
        inputs = x if layers is nn else pytorch().tensor(x)
        for _ in range(11):
            opt.zero_grad()
            (layer(inputs) ** 2).sum().backward()
            opt.step()
            scheduler.step()
        weights.append(layer.weight.detach().numpy())
        group = opt.param_groups[0]
        assert (group["betas"][0] if has_betas else group["momentum"]) == pytest.approx(0.95)
    rtol = 0.02 if rule == "Muon" else 1e-4  # PyTorch's Muon rounds to bfloat16
    np.testing.assert_allclose(*weights, rtol=rtol, atol=1e-6)


def test_nadam_multiplies_the_momenta_of_all_its_steps() -> None:
    p = nn.Parameter(np.array([1.0, -2.0]))
    opt = optim.NAdam([p], lr=0.1, momentum_decay=0.1)
    x, m, v, product = p.numpy().copy(), np.zeros(2), np.zeros(2), 1.0
    for t, beta1 in enumerate([0.9, 0.5, 0.7, 0.95], 1):
        opt.param_groups[0]["betas"] = beta1, 0.99
        opt.zero_grad()
        (p**2).sum().backward()
        opt.step()
        g = 2 * x
        m, v = beta1 * m + (1 - beta1) * g, 0.99 * v + 0.01 * g * g
        mu, next_mu = (beta1 * (1 - 0.5 * 0.96 ** (n * 0.1)) for n in (t, t + 1))
        product *= mu
        change = (1 - mu) / (1 - product) * g + next_mu / (1 - product * next_mu) * m
        x -= 0.1 * change / (np.sqrt(v / (1 - 0.99**t)) + 1e-8)
        np.testing.assert_allclose(p.numpy(), x, rtol=1e-12)


@needs_torch
def test_asgd_takes_a_changed_rate_one_step_later_as_pytorch() -> None:
    weights = []
    for layers, library in libraries():
        n = nnmpi if layers is nn else pytorch()
        p = layers.Parameter(n.tensor([1.0, -2.0], dtype=n.float64))
        opt = library.ASGD([p], lr=0.1, lambd=0.1, t0=2)
        scheduler = library.lr_scheduler.StepLR(opt, 2)
        for _ in range(7):
            opt.zero_grad()
            (p**2).sum().backward()
            opt.step()
            scheduler.step()
            weights.append(p.detach().tolist())
    # PyTorch keeps the rate in float32
    np.testing.assert_allclose(weights[:7], weights[7:], rtol=1e-6)


@needs_torch
def test_restarts_within_epochs_are_pytorchs() -> None:
    rates = []
    for layers, library in libraries():
        opt = library.SGD(layers.Linear(2, 2).parameters(), lr=0.1)
        scheduler = library.lr_scheduler.CosineAnnealingWarmRestarts(opt, 2, 2)
        found = []
        for at in (0.5, 1.25, 1.75, 2.0, 5.5, None, 6.5, 20.25, None, None):
            scheduler.step(at)
            found.append((scheduler.last_epoch, *scheduler.get_last_lr()))
        rates.append(found)
    np.testing.assert_allclose(*rates, rtol=1e-12)


PLATEAUS: dict[str, dict[str, Any]] = {
    "losses": {"patience": 1},
    "a cooldown": {"patience": 0, "cooldown": 2, "factor": 0.5},
    "accuracies": {"mode": "max", "patience": 1, "threshold": 0.1},
    "absolute": {"threshold_mode": "abs", "threshold": 0.3, "patience": 0},
    "absolute, largest": {"threshold_mode": "abs", "threshold": 0.3, "mode": "max", "patience": 1},
    "least rates": {"patience": 0, "factor": 0.1, "min_lr": [0.02, 0.05]},
}


@needs_torch
@pytest.mark.parametrize("case", PLATEAUS)
def test_plateaus_are_pytorchs(case: str) -> None:
    numbers = np.random.default_rng(1).standard_normal(40).cumsum() + 3
    rates = []
    for layers, library in libraries():
        opt = of_two_groups(layers, library)
        scheduler = library.lr_scheduler.ReduceLROnPlateau(opt, **PLATEAUS[case])
        rates.append([])
        for number in numbers:
            scheduler.step(number)
            rates[-1].append([g["lr"] for g in opt.param_groups])
            bad = scheduler.num_bad_epochs, scheduler.cooldown_counter
            rates[-1][-1] += [scheduler.best, *bad]
    np.testing.assert_allclose(*rates, rtol=1e-12)


STATEFUL: dict[str, Any] = {
    "plateau": lambda s, o: s.ReduceLROnPlateau(o, patience=1),
    "sequence": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.5), s.CosineAnnealingWarmRestarts(o, 3)], [4]
    ),
    "one cycle": lambda s, o: s.OneCycleLR(o, 0.3, 30),
    "products": lambda s, o: s.MultiplicativeLR(o, lambda t: 1 - 1 / (t + 2)),
    "chain": lambda s, o: s.ChainedScheduler([s.LinearLR(o, 0.5), s.MultiplicativeLR(o, abs)]),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_a_scheduler_goes_on_from_its_state(name: str) -> None:
    def made() -> tuple[Any, Any]:
        opt = optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
        return opt, STATEFUL[name](optim.lr_scheduler, opt)

    def steps(opt: Any, scheduler: Any, n: int) -> list[float]:
        found = []
        for i in range(n):
            scheduler.step(*[1.0 + i % 3] * (name == "plateau"))
            found.append(opt.param_groups[0]["lr"])
        return found

    opt, scheduler = made()
    steps(opt, scheduler, 6)
    state, rate = scheduler.state_dict(), opt.param_groups[0]["lr"]
    wanted = steps(opt, scheduler, 6)
    opt, scheduler = made()
    scheduler.load_state_dict(state)
    opt.param_groups[0]["lr"] = rate
    assert steps(opt, scheduler, 6) == wanted


class Halves(optim.lr_scheduler.LRScheduler):
    """A scheduler of a user, as PyTorch's are written."""

    def get_lr(self) -> list[float]:
        if self.last_epoch == 0:
            return self.base_lrs
        return [group["lr"] / 2 for group in self.optimizer.param_groups]


def test_a_cycle_goes_on_from_a_pickle_whose_phases_are_plain_tuples() -> None:
    """Versions before phases had names have written such pickles."""
    layer = nn.Linear(2, 2)
    opt = optim.SGD([*layer.parameters()], lr=0.1, momentum=0.9)
    scheduler = optim.lr_scheduler.OneCycleLR(opt, 0.3, 12, three_phase=True)
    state = pickle.dumps((scheduler, [tuple(phase) for phase in scheduler._phases]))
    loaded, loaded._phases = pickle.loads(state)
    for _ in range(11):
        scheduler.step()
        loaded.step()
        assert loaded.get_last_lr() == scheduler.get_last_lr()
        assert loaded.optimizer.param_groups[0]["momentum"] == opt.param_groups[0]["momentum"]


def test_a_scheduler_of_a_user() -> None:
    opt = optim.SGD(nn.Linear(2, 2).parameters(), lr=0.8)
    scheduler = Halves(opt)
    scheduler.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.2]


def test_what_is_left_out_names_what_to_write() -> None:
    with pytest.raises(AttributeError, match=r"no NoamLR: use LambdaLR\(optimizer, f\)"):
        _ = optim.lr_scheduler.NoamLR
    schedulers, opt = optim.lr_scheduler, optim.SGD(nn.Linear(2, 2).parameters())
    with refused("2 functions for 1 groups"):
        schedulers.LambdaLR(opt, [abs, abs])
    with refused("2 values of max_lr for 1 groups"):
        schedulers.OneCycleLR(opt, [0.1, 0.2], 10)
    with refused("mode='square' must be one of triangular"):
        schedulers.CyclicLR(opt, 0.1, 0.2, mode="square")
    with refused("0 steps", "epochs and steps_per_epoch"):
        schedulers.OneCycleLR(opt, 0.1)
    with refused("step 3 of 2", "a larger total_steps"):
        schedulers.OneCycleLR(opt, 0.1, 2).step(3)
    with refused("factor=1.5", "below 1"):
        schedulers.ReduceLROnPlateau(opt, factor=1.5)
    with refused("2 milestones for 1 schedulers"):
        schedulers.SequentialLR(opt, [schedulers.StepLR(opt, 2)], [1, 2])
    with refused("ChainedScheduler: give at least one"):
        schedulers.ChainedScheduler([])
    with refused("call step(measure) of a ReduceLROnPlateau separately"):
        schedulers.ChainedScheduler([schedulers.ReduceLROnPlateau(opt)])
    with refused("schedulers of this optimizer"):
        other = optim.SGD(nn.Linear(2, 2).parameters())
        schedulers.SequentialLR(opt, [schedulers.StepLR(other, 2)], [])
    with refused("T_0=0"):
        schedulers.CosineAnnealingWarmRestarts(opt, 0)
    with refused("no initial_lr"):
        schedulers.StepLR(optim.SGD(nn.Linear(2, 2).parameters()), 2, last_epoch=3)

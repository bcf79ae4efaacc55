"""Averages of weights, beside PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import nn
from nnmpi.optim import swa_utils

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 8, 3))

AVERAGES: dict[str, Any] = {
    "means": lambda utils: {},
    "a function": lambda utils: {"avg_fn": utils.get_ema_avg_fn(0.7)},
    "a function of lists": lambda utils: {"multi_avg_fn": utils.get_ema_multi_avg_fn(0.7)},
    "means of lists": lambda utils: {"multi_avg_fn": utils.get_swa_multi_avg_fn()},
    "buffers": lambda utils: {"avg_fn": utils.get_swa_avg_fn(), "use_buffers": True},
}


def model(n: Any) -> Any:
    """The same for both libraries: a layer and its norm."""
    m = n.nn.Sequential(n.nn.Linear(3, 4), n.nn.BatchNorm1d(4))
    rng = np.random.default_rng(1)
    with n.no_grad():
        for p in m.parameters():
            p[...] = n.tensor(rng.standard_normal(tuple(p.shape)))
    return m.to(n.float64)


def trained(n: Any, utils: Any, name: str) -> dict[str, np.ndarray]:
    """The state of an average over steps, with new statistics at the end."""
    m = model(n)
    averaged = utils.AveragedModel(m, **AVERAGES[name](utils))
    opt = n.optim.SGD(m.parameters(), lr=0.1)
    for x in X[:3]:
        opt.zero_grad()
        (m(n.tensor(x)) ** 3).mean().backward()
        opt.step()
        averaged.update_parameters(m)
    averaged.eval()
    y = averaged(n.tensor(X[4])).detach().numpy()
    assert int(averaged.n_averaged) == 3
    utils.update_bn([(n.tensor(x), None) for x in X], averaged)
    assert not averaged.training
    state = {name: np.asarray(value).copy() for name, value in averaged.state_dict().items()}
    return {**state, "y": y, "again": averaged(n.tensor(X[4])).detach().numpy()}


@needs_torch
@pytest.mark.parametrize("name", AVERAGES)
def test_averages_are_pytorchs(name: str) -> None:
    torch = pytorch()
    ours, theirs = trained(nnmpi, swa_utils, name), trained(torch, torch.optim.swa_utils, name)
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():  # PyTorch's means of lists have weights in float32
        np.testing.assert_allclose(ours[key], value, rtol=1e-8, atol=1e-10, err_msg=key)


@needs_torch
@pytest.mark.parametrize("strategy", ["cos", "linear"])
@pytest.mark.parametrize("epochs", [0, 3])
def test_rates_are_pytorchs(strategy: str, epochs: int) -> None:
    rates = []
    for n in (nnmpi, pytorch()):
        opt = n.optim.SGD([{"params": n.nn.Linear(2, 2).parameters()}], lr=0.4)
        scheduler = n.optim.swa_utils.SWALR(opt, 0.05, epochs, strategy)
        rates.append([opt.param_groups[0]["lr"]])
        for step in range(6):
            opt.step()
            scheduler.step()
            if step == 0:
                opt.param_groups[0]["lr"] *= 0.9
            rates[-1].append(opt.param_groups[0]["lr"])
    np.testing.assert_allclose(*rates, rtol=1e-12)


def test_a_model_without_norms_has_no_statistics() -> None:
    swa_utils.update_bn([], nn.Linear(2, 3))


def test_what_does_not_fit_is_refused() -> None:
    with refused("decay=2 must be from 0 to 1"):
        swa_utils.get_ema_avg_fn(2)
    with refused("not both"):
        functions = swa_utils.get_swa_avg_fn(), swa_utils.get_swa_multi_avg_fn()
        swa_utils.AveragedModel(nn.Linear(2, 3), None, *functions)
    opt = nnmpi.optim.SGD(nn.Linear(2, 3).parameters(), lr=0.1)
    with refused("anneal_strategy='exp'"):
        swa_utils.SWALR(opt, 0.05, anneal_strategy="exp")

"""PyTorch's schedulers of the rate, step by step against PyTorch's."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

from nnmpi import nn, optim

SCHEDULERS: dict[str, tuple[str, dict[str, Any]]] = {
    "lambda": ("LambdaLR", {"lr_lambda": lambda t: 0.9**t}),
    "lambdas": ("LambdaLR", {"lr_lambda": [lambda t: 0.9**t, lambda t: 1 / (1 + t)]}),
    "step": ("StepLR", {"step_size": 3}),
    "milestones": ("MultiStepLR", {"milestones": [5, 2, 2], "gamma": 0.5}),
    "exponential": ("ExponentialLR", {"gamma": 0.8}),
    "linear": ("LinearLR", {"start_factor": 0.25, "total_iters": 4}),
    "cosine": ("CosineAnnealingLR", {"T_max": 5, "eta_min": 0.01}),
}


@needs_torch
@pytest.mark.parametrize("case", SCHEDULERS)
def test_rates_are_pytorchs(case: str) -> None:
    torch, (name, options) = pytorch(), SCHEDULERS[case]
    kinds = (nn, optim), (torch.nn, torch.optim)
    both = []
    for layers, library in kinds:
        a, b = layers.Linear(2, 2), layers.Linear(2, 1)
        groups = [{"params": [*a.parameters()]}, {"params": [*b.parameters()], "lr": 0.3}]
        opt = library.SGD(groups, lr=0.1)
        both.append((opt, getattr(library.lr_scheduler, name)(opt, **options)))
    for _ in range(9):
        (ours, mine), (_, other) = both
        np.testing.assert_allclose(mine.get_last_lr(), other.get_last_lr(), rtol=1e-12, atol=1e-15)
        assert [g["lr"] for g in ours.param_groups] == mine.get_last_lr()
        for opt, scheduler in both:
            opt.step()
            scheduler.step()
    state = both[0][1].state_dict()
    both[0][1].step()
    both[0][1].load_state_dict(state)
    assert both[0][1].last_epoch == 9


def test_what_is_left_out_names_what_to_write() -> None:
    for name in ("ReduceLROnPlateau", "OneCycleLR"):
        with pytest.raises(AttributeError, match=rf"no {name}: use LambdaLR\(optimizer, f\)"):
            getattr(optim.lr_scheduler, name)
    with refused("2 functions for 1 groups"):
        optim.lr_scheduler.LambdaLR(optim.SGD(nn.Linear(2, 2).parameters()), [abs, abs])

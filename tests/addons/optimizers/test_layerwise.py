"""LAMB and LARS: their formulas; every layout of them and of Muon trains as one rank."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from helpers.training.laws_language import VOCABULARY, tokens
from helpers.training.pipelined import Ran, equals, run
from helpers.training.transformer_models import Decoder

from nnmpi import Config, Trainer, nn, optim
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads

OPTIONS: dict[str, dict[str, Any]] = {
    "lamb": {"lr": 0.01, "weight_decay": 0.02},
    "lars": {"lr": 0.5, "weight_decay": 0.02, "momentum": 0.8},
    "muon": {"lr": 0.01, "weight_decay": 0.02, "weight_decay_of": "matrices"},
}


def lamb(p: Any, g: Any, state: dict[str, Any], t: int, lr: float, weight_decay: float) -> None:
    m, v = state.setdefault("m", np.zeros_like(p)), state.setdefault("v", np.zeros_like(p))
    m += 0.1 * (g - m)
    v += 0.001 * (g * g - v)
    u = m / (1 - 0.9**t) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + weight_decay * p
    a, b = np.linalg.norm(p), np.linalg.norm(u)
    p -= lr * (a / b if a > 0 and b > 0 else 1.0) * u


def lars(
    p: Any, g: Any, state: dict[str, Any], t: int, lr: float, weight_decay: float, momentum: float
) -> None:
    a, b = np.linalg.norm(p), np.linalg.norm(g)
    ratio = 0.001 * a / (b + weight_decay * a) if a > 0 and b > 0 else 1.0
    velocity = state.setdefault("velocity", np.zeros_like(p))
    velocity *= momentum
    velocity += lr * ratio * (g + weight_decay * p)
    p -= velocity


FORMULAS: dict[str, Callable[..., None]] = {"lamb": lamb, "lars": lars}


@pytest.mark.parametrize("name", FORMULAS)
@pytest.mark.parametrize("decays", ["all", "matrices"])
def test_an_update_is_that_of_the_formula(name: str, decays: str) -> None:
    draws, options = np.random.default_rng(0), OPTIONS[name]
    parameters = [nn.Parameter(draws.standard_normal(s)) for s in ((4, 3), (5,), (2, 2), (3,))]
    parameters[3].data[...] = 0  # whose norm is 0
    values = [p.data.copy() for p in parameters]
    groups: Any = parameters
    if decays == "matrices":
        groups = optim.DECAYS["matrices"](parameters)
    optimizer = optim.rules.optimizer_named(name)(groups, **options)
    states: list[dict[str, Any]] = [{} for _ in values]
    for t in range(1, 5):
        for p, value, state in zip(parameters, values, states, strict=True):
            g = draws.standard_normal(p.shape)
            p.grad = g
            how = dict(options)
            if decays == "matrices" and p.data.ndim == 1:
                how["weight_decay"] = 0.0
            FORMULAS[name](value, g, state, t, **how)
        optimizer.step()
    for p, value in zip(parameters, values, strict=True):
        np.testing.assert_allclose(p.data, value, rtol=1e-12, atol=1e-14)


LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    **{f"dp 2, zero {z}": (2, {"dp": 2, "zero": z}) for z in range(4)},
    **{f"dp 3, zero {z}": (3, {"dp": 3, "zero": z}) for z in (1, 3)},
    **{f"dp 2, pp 2, zero {z}": (4, {"dp": 2, "pp": 2, "zero": z}) for z in range(4)},
    **{f"dp 2, tp 2, zero {z}": (4, {"dp": 2, "tp": 2, "zero": z}) for z in (0, 1, 3)},
    "dp 2, pp 2, tp 2": (8, {"dp": 2, "pp": 2, "tp": 2}),
    "dp 2, pp 2, tp 2, zero 3": (8, {"dp": 2, "pp": 2, "tp": 2, "zero": 3}),
    "memory of a node": (4, {"dp": 4, "allreduce": "shared"}),
    "cp": (4, {"cp": 2, "dp": 2}),
}
OF_WHOLE_MATRICES: dict[str, tuple[int, dict[str, Any]]] = {
    "dp 2": (2, {"dp": 2}),
    "dp 3, ring": (3, {"dp": 3, "allreduce": "ring"}),
    "memory of a node": (4, {"dp": 4, "allreduce": "shared"}),
    "small buckets": (2, {"dp": 2, "allreduce": "ring", "bucket_mb": 1e-4}),
    "pp 2": (2, {"pp": 2}),
    "pp 2, zb-h1": (2, {"pp": 2, "schedule": "zb-h1"}),
    "dp 2, pp 2": (4, {"dp": 2, "pp": 2}),
    "cp": (4, {"cp": 2, "dp": 2}),
}
"""Those that Muon takes."""


def decoder() -> nn.Module:
    """Its embedding is its head too, which is on another rank of a pipeline."""
    return Decoder(VOCABULARY, 8, heads=2, width=16)


def trained(comm: Comm, name: str, **layout: Any) -> Ran:
    how = {
        "batch_size": 9,
        "micro_batches": 2,
        "clip_norm": 1.0,
        "optimizer": name,
        **OPTIONS[name],
        **layout,
    }
    return run(comm, decoder, tokens(8), **how)


@cache
def on_one_rank(name: str) -> Ran:
    return trained(comm_self(), name)


PAIRS = [
    pytest.param(layout, name, marks=pytest.mark.long if (k + n) % 2 else ())
    for k, layout in enumerate(LAYOUTS)
    for n, name in enumerate(FORMULAS)
]
"""Each layout with one of the two, by turns: both need no more of it than norms of tensors."""
PAIRS += [pytest.param(layout, "muon") for layout in OF_WHOLE_MATRICES]


@pytest.mark.parametrize(("layout", "name"), PAIRS)
def test_a_layout_trains_as_one_rank(layout: str, name: str) -> None:
    ranks, options = (OF_WHOLE_MATRICES if name == "muon" else LAYOUTS)[layout]
    wanted = on_one_rank(name)
    threads.run(ranks, lambda comm: equals(comm, trained(comm, name, **options), wanted))


@pytest.mark.parametrize("other", [{"sync": "asp"}, {"tp": 2, "verify": True}])
def test_layouts_without_norms_are_refused(other: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"with optimizer lamb: (a server|one rank) has"):
        threads.run(2, lambda comm: Trainer(Config(optimizer="lamb", **other), comm=comm))

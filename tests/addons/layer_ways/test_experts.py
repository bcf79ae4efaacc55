"""nn.MixtureOfExperts beside a loop over tokens in PyTorch, and what it does not depend on."""

from typing import Any

import numpy as np
import pytest
from helpers.ops.opcases_experts import mixed, routed
from helpers.ops.oracle import needs_torch
from helpers.training.branch_models import switch
from helpers.training.pipelined import distance, run

import nnmpi
from nnmpi import nn
from nnmpi.comm import comm_self

SIZES = {"width": 4, "hidden": 6, "num_experts": 5}


def layer(**options: Any) -> Any:
    return nn.MixtureOfExperts(**SIZES | options).to("float64")


def samples(*shape: int) -> np.ndarray:
    return np.asarray(np.random.default_rng(8).standard_normal(shape))


def auxiliary(t: Any, x: Any, w: Any, top_k: int) -> Any:
    """The mean over samples of E sum_e f_e P_e."""
    found = []
    for sample in x:
        p = t.softmax(sample @ w.T, 1)
        best = p.topk(top_k, 1).indices.flatten()
        f = t.bincount(best, minlength=len(w)).double() / len(best)
        found.append(len(w) * (f * p.mean(0)).sum())
    return t.stack(found).mean()


@needs_torch
@pytest.mark.parametrize(
    ("top_k", "factor", "coefficient"), [(2, 0.7, 0.0), (2, 1.25, 0.3), (1, 0.5, 0.3)]
)
def test_values_and_gradients_are_those_of_a_loop(
    top_k: int, factor: float, coefficient: float
) -> None:
    torch = pytest.importorskip("torch")
    moe = layer(top_k=top_k, capacity_factor=factor, auxiliary=coefficient)
    x = nnmpi.tensor(samples(3, 7, 4), requires_grad=True)
    g = samples(3, 7, 4)[::-1].copy()
    y = moe(x)
    y.backward(g)

    theirs = [
        torch.tensor(a, requires_grad=True) for a in (x.numpy(), *map(_values, moe.parameters()))
    ]
    there, w, *weights = theirs
    gates = routed(torch, there, w, top_k, factor)
    out = mixed(torch, there, gates, *weights, slots=7)
    balance = auxiliary(torch, there, w, top_k)
    ((out * torch.tensor(g)).sum() + coefficient * balance).backward()

    if factor < 1:
        assert float((gates > 0).sum()) < 3 * 7 * top_k  # tokens beyond the capacity
    np.testing.assert_allclose(y.numpy(), out.detach().numpy(), rtol=1e-12, atol=1e-13)
    assert moe.balance(x) == pytest.approx(float(balance.detach()), rel=1e-12)
    for ours, theirs_ in zip((x, *moe.parameters()), theirs, strict=True):
        np.testing.assert_allclose(ours.grad, theirs_.grad.numpy(), rtol=1e-11, atol=1e-13)


def _values(p: nn.Parameter) -> np.ndarray:
    return np.array(p.data)


def test_a_sample_does_not_depend_on_those_beside_it() -> None:
    moe, x = layer(capacity_factor=0.5), samples(6, 7, 4)
    whole = moe(nnmpi.tensor(x)).numpy()
    for part in (slice(0, 1), slice(1, 6), slice(6, 6)):
        np.testing.assert_allclose(moe(nnmpi.tensor(x[part])).numpy(), whole[part], rtol=1e-13)


def test_a_position_does_not_depend_on_those_behind_it() -> None:
    """So a causal model stays causal: the first tokens have the room of an expert."""
    moe, x = layer(capacity_factor=0.5), samples(2, 7, 4)
    changed = x.copy()
    changed[:, 4:] += 1
    a, b = (moe(nnmpi.tensor(v)).numpy() for v in (x, changed))
    np.testing.assert_allclose(a[:, :4], b[:, :4], rtol=1e-13)
    assert abs(a[:, 4:] - b[:, 4:]).max() > 1e-3


def test_the_auxiliary_loss_is_a_mean_over_the_whole_batch() -> None:
    """Whatever the number of micro-batches, of which each knows its own samples only."""
    one, three = (run(comm_self(), switch, micro_batches=m) for m in (1, 3))
    assert distance(three.state, one.state) < 1e-10
    without = run(comm_self(), lambda: _without(switch()))
    assert distance(without.state, one.state) > 1e-6


def _without(model: nn.Module) -> nn.Module:
    for m in model.modules():
        if hasattr(m, "auxiliary"):
            m.auxiliary = 0.0
    return model

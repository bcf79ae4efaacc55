"""Independent and MixtureSameFamily beside PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import distributions as d

RNG = np.random.default_rng(0)
LOGITS, LOC, SCALE = (
    RNG.standard_normal((3, 4)),
    RNG.standard_normal((3, 4, 2)),
    RNG.random((3, 4, 2)),
)
SCALE += 0.5

MADE: dict[str, tuple[Callable[[Any, Any, Any, Any], Any], tuple[int, ...]]] = {
    "one axis is an event": (lambda d, w, m, s: d.Independent(d.Normal(m, s), 1), (3, 4, 2)),
    "two axes are": (lambda d, w, m, s: d.Independent(d.Normal(m, s), 2), (3, 4, 2)),
    "none is": (lambda d, w, m, s: d.Independent(d.Categorical(logits=w), 0), (3,)),
    "bernoullis": (lambda d, w, m, s: d.Independent(d.Bernoulli(logits=w), 1), (3, 4)),
    "a mixture of numbers": (
        lambda d, w, m, s: d.MixtureSameFamily(
            d.Categorical(logits=w), d.Normal(m[..., 0], s[..., 0])
        ),
        (3,),
    ),
    "a mixture of vectors": (
        lambda d, w, m, s: d.MixtureSameFamily(
            d.Categorical(logits=w), d.Independent(d.Normal(m, s), 1)
        ),
        (3, 2),
    ),
}
WITHOUT_ENTROPY = ("a mixture of numbers", "a mixture of vectors")


def both(case: str) -> list[tuple[Any, Any, list[Any]]]:
    """The distribution here and in PyTorch, what makes tensors, and the parameters."""
    torch, found = pytorch(), []
    for library, make in ((d, nnmpi.tensor), (torch.distributions, torch.tensor)):
        given = [make(v, requires_grad=True) for v in (LOGITS, LOC, SCALE)]
        found.append((MADE[case][0](library, *given), make, given))
    return found


@needs_torch
@pytest.mark.parametrize("case", MADE)
def test_probabilities_and_moments_are_pytorchs(case: str) -> None:
    made, shape = both(case), MADE[case][1]
    x = RNG.integers(0, 2, shape) * 1.0
    results: list[list[Any]] = []
    for dist, make, given in made:
        values = [dist.log_prob(make(x))]
        values += [] if case in WITHOUT_ENTROPY else [dist.entropy()]
        values += [] if case == "none is" else [dist.mean, dist.variance, dist.stddev]
        sum((i + 1) * (v * v).sum() for i, v in enumerate(values)).backward()
        values += [p.grad for p in given if p.grad is not None]
        results.append([v.detach().numpy() for v in values])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, strict=True)
    (ours, *_), (theirs, *_) = made
    assert ours.batch_shape == tuple(theirs.batch_shape)
    assert ours.event_shape == tuple(theirs.event_shape)
    assert ours.sample((5, 2)).shape == tuple(theirs.sample((5, 2)).shape)


@needs_torch
def test_the_divergence_of_joined_normals_is_pytorchs() -> None:
    torch, found = pytorch(), []
    for library, make in ((d, nnmpi.tensor), (torch.distributions, torch.tensor)):
        p, q = (
            library.Independent(library.Normal(make(LOC + k), make(SCALE)), 1) for k in (0, 0.3)
        )
        found.append(library.kl_divergence(p, q).numpy())
    np.testing.assert_allclose(*found, rtol=1e-12, strict=True)


def test_samples_of_a_mixture_have_its_mean_and_deviation() -> None:
    weights, means = nnmpi.tensor([0.25, 0.75]), nnmpi.tensor([[-2.0, 0.0], [2.0, 1.0]])
    mixture = d.MixtureSameFamily(d.Categorical(weights), d.Independent(d.Normal(means, 0.5), 1))
    with nnmpi.seeded(3):
        drawn = mixture.sample((20_000,)).numpy()
    assert drawn.shape == (20_000, 2)
    np.testing.assert_allclose(drawn.mean(0), [1.0, 0.75], atol=5 * 1.9 / 20_000**0.5)
    np.testing.assert_allclose(drawn.std(0), mixture.stddev.numpy(), rtol=0.03)
    np.testing.assert_allclose(mixture.stddev.numpy(), np.sqrt([3.25, 0.4375]), rtol=1e-6)


def test_shapes_that_do_not_fit_are_refused() -> None:
    normal = d.Normal(nnmpi.zeros(3, 2), 1.0)
    with refused("Independent: 3 axes", "(3, 2)"):
        d.Independent(normal, 3)
    with refused("(3, 2)", "(4,)", "last axes"):
        d.MixtureSameFamily(d.Categorical(nnmpi.ones(4)), normal)
    with refused("a Normal", "a Categorical"):
        d.MixtureSameFamily(normal, normal)
    one = d.Independent(normal, 1)
    with refused("1 and 2 axes"):
        d.kl_divergence(one, d.Independent(normal, 2))

"""Distributions beside PyTorch's, and their samples."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch, same_as_pytorch

import nnmpi
from nnmpi import distributions as d

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((2, 3, 4))
P, Q = RNG.random((2, 3, 4))
S, EDGES = np.exp(B), np.array([0.0, 1.0, 0.3])
LOC, SCALE = RNG.standard_normal((3, 4, 2)), RNG.random((3, 4, 2)) + 0.5
COINS, WORDS = (Q > 0.5) * 1.0, np.array([0, 3, 1])

Make = Callable[..., Any]


def mixture(d: Any, w: Any, m: Any, s: Any) -> Any:
    return d.MixtureSameFamily(d.Categorical(logits=w), d.Normal(m[..., 0], s[..., 0]))


def mixture_of_vectors(d: Any, w: Any, m: Any, s: Any) -> Any:
    parts = d.Independent(d.Normal(m, s), 1)
    return d.MixtureSameFamily(d.Categorical(logits=w), parts)


ENTROPY, MOMENTS = ("entropy",), ("mean", "variance", "stddev")
ALL = ENTROPY + MOMENTS
CASES: dict[str, tuple[Make, tuple[np.ndarray, ...], np.ndarray, tuple[str, ...]]] = {
    "normal": (lambda d, m, s: d.Normal(m, s), (A, S), Q, ENTROPY),
    "normal, more values": (lambda d, m, s: d.Normal(m, s), (A, S), np.stack([P, Q]), ()),
    "bernoulli": (lambda d, p: d.Bernoulli(p), (P,), COINS, ENTROPY),
    "bernoulli, logits": (lambda d, w: d.Bernoulli(logits=w), (A,), COINS, ENTROPY),
    "bernoulli, edges": (lambda d, p: d.Bernoulli(p), (EDGES,), np.array([0, 1.0, 1]), ENTROPY),
    "categorical": (lambda d, p: d.Categorical(p), (P,), WORDS, ENTROPY),
    "categorical, logits": (
        lambda d, w: d.Categorical(logits=w),
        *((A,), np.array([[0, 3, 1], [2, 2, 0]]), ENTROPY),
    ),
    "categorical, one": (lambda d, w: d.Categorical(logits=w), (A[0],), np.array(2), ENTROPY),
    "categorical, edges": (lambda d, p: d.Categorical(p), (EDGES,), np.array([1, 2]), ENTROPY),
    "one axis is an event": (
        lambda d, m, s: d.Independent(d.Normal(m, s), 1),
        *((LOC, SCALE), LOC + 1, ALL),
    ),
    "two axes are": (
        lambda d, m, s: d.Independent(d.Normal(m, s), 2),
        *((LOC, SCALE), LOC + 1, ALL),
    ),
    "none is": (lambda d, w: d.Independent(d.Categorical(logits=w), 0), *((A,), WORDS, ENTROPY)),
    "bernoullis": (lambda d, w: d.Independent(d.Bernoulli(logits=w), 1), *((A,), COINS, ALL)),
    "a mixture of numbers": (mixture, (A, LOC, SCALE), A[:, 0], MOMENTS),
    "a mixture of vectors": (mixture_of_vectors, (A, LOC, SCALE), A[:, :2], MOMENTS),
}
"""What is made of which parameters, a value, and what is compared besides its logarithm."""


@needs_torch
@pytest.mark.parametrize("case", CASES)
def test_probabilities_and_moments_are_pytorchs(case: str) -> None:
    make, parameters, value, names = CASES[case]

    def program(n: Any, *given: Any) -> Any:
        dist = make(n.distributions, *given)
        found = [dist.log_prob(n.tensor(value))]
        return found + [y() if callable(y := getattr(dist, name)) else y for name in names]

    same_as_pytorch(program, *parameters, rtol=1e-8, atol=1e-10)
    ours, theirs = (make(n.distributions, *map(n.tensor, parameters)) for n in (nnmpi, pytorch()))
    assert ours.batch_shape == tuple(theirs.batch_shape)
    assert ours.event_shape == tuple(theirs.event_shape)
    assert ours.sample((5, 2)).shape == tuple(theirs.sample((5, 2)).shape)


PAIRS: dict[str, tuple[Make, tuple[np.ndarray, ...]]] = {
    "normal": (lambda d, m, s, n, t: (d.Normal(m, s), d.Normal(n, t)), (A, P, B, Q)),
    "bernoulli": (lambda d, p, q: (d.Bernoulli(p), d.Bernoulli(q)), (P, Q)),
    "bernoulli, edges": (
        lambda d, p: (d.Bernoulli(p), d.Bernoulli(p.new_tensor([0.5, 1.0, 0.0]))),
        (EDGES,),
    ),
    "categorical": (lambda d, v, w: (d.Categorical(logits=v), d.Categorical(logits=w)), (A, B)),
    "categorical, edges": (
        lambda d, p: (d.Categorical(p), d.Categorical(p.new_tensor([0.5, 0.2, 0.0]))),
        (EDGES,),
    ),
    "joined normals": (
        lambda d, m, s: tuple(d.Independent(d.Normal(m + k, s), 1) for k in (0, 0.3)),
        (LOC, SCALE),
    ),
}


@needs_torch
@pytest.mark.parametrize("case", PAIRS)
def test_divergences_are_pytorchs(case: str) -> None:
    make, parameters = PAIRS[case]

    def program(n: Any, *given: Any) -> Any:
        y = n.distributions.kl_divergence(*make(n.distributions, *given))
        return y.detach() if "edges" in case else y  # its gradient is infinite there

    same_as_pytorch(program, *parameters, rtol=1e-8, atol=1e-10)


MEANS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "normal": (lambda: d.Normal(nnmpi.tensor([1.0, -2.0]), 0.5), [1.0, -2.0], 0.5),
    "bernoulli": (lambda: d.Bernoulli(nnmpi.tensor([0.2, 0.7])), [0.2, 0.7], 0.5),
    "categorical": (
        lambda: d.Categorical(nnmpi.tensor([[0, 1, 3.0], [1, 1, 0]])),
        [1.75, 0.5],
        0.5,
    ),
    "a mixture": (
        lambda: d.MixtureSameFamily(
            d.Categorical(nnmpi.tensor([0.25, 0.75])),
            d.Independent(d.Normal(nnmpi.tensor([[-2.0, 0.0], [2.0, 1.0]]), 0.5), 1),
        ),
        *([1.0, 0.75], [3.25**0.5, 0.4375**0.5]),
    ),
}


@pytest.mark.parametrize("case", MEANS)
def test_samples_have_the_means_and_deviations(case: str) -> None:
    make, means, deviation = MEANS[case]
    with nnmpi.seeded(3):
        drawn = make().sample((20_000,)).numpy()
    assert drawn.shape == (20_000, 2)
    np.testing.assert_allclose(drawn.mean(0), means, atol=5 * np.max(deviation) / 20_000**0.5)
    if case in ("normal", "a mixture"):
        np.testing.assert_allclose(drawn.std(0), np.broadcast_to(deviation, 2), rtol=0.03)
        np.testing.assert_allclose(make().stddev.numpy(), np.broadcast_to(deviation, 2), rtol=1e-6)


def test_samples_follow_the_seed_and_have_no_gradient() -> None:
    loc = nnmpi.tensor([1.0, 2.0], requires_grad=True)
    with nnmpi.seeded(1):
        first = d.Normal(loc, 1.0).sample((3,))
    with nnmpi.seeded(1):
        again = d.Normal(loc, 1.0).rsample((3,))
    np.testing.assert_array_equal(first.numpy(), again.detach().numpy())
    assert not first.requires_grad
    again.sum().backward()
    np.testing.assert_array_equal(np.asarray(loc.grad), [3.0, 3.0])


def test_numbers_are_parameters() -> None:
    x = d.Normal(0.0, 1.0).log_prob(0.0)
    assert x.item() == pytest.approx(-0.5 * math.log(2 * math.pi))
    assert x.dtype == "float32"
    assert d.Bernoulli(0.5).entropy().item() == pytest.approx(math.log(2))
    assert d.Categorical([1, 1, 2]).probs.tolist() == [0.25, 0.25, 0.5]


def normal() -> Any:
    return d.Normal(nnmpi.zeros(3, 2), 1.0)


REFUSED: dict[type[Exception], dict[str, Callable[[], Any]]] = {
    ValueError: {
        "Normal: scale must be above 0": lambda: d.Normal(0.0, -1.0),
        "Bernoulli: probabilities from 0.5 to 2": lambda: d.Bernoulli([0.5, 2.0]),
        "Categorical: probabilities must be at least 0": lambda: d.Categorical([0.5, -2.0]),
        "Bernoulli: give either probs or logits": d.Bernoulli,
        "Categorical: give either probs or logits": d.Categorical,
        "Independent: 3 axes ... (3, 2)": lambda: d.Independent(normal(), 3),
        "(3, 2) ... (4,) ... last axes": lambda: d.MixtureSameFamily(
            d.Categorical(nnmpi.ones(4)), normal()
        ),
        "a Normal ... a Categorical": lambda: d.MixtureSameFamily(normal(), normal()),
        "1 and 2 axes": lambda: d.kl_divergence(
            d.Independent(normal(), 1), d.Independent(normal(), 2)
        ),
    },
    NotImplementedError: {
        "Bernoulli ... take sample, and log_prob": lambda: d.Bernoulli([0.5, 0.5]).rsample(),
        "Categorical ... take sample, and log_prob": lambda: d.Categorical([0.5, 0.5]).rsample(),
        "of Normal from Bernoulli: write the mean": lambda: d.kl_divergence(
            d.Normal(0.0, 1.0), d.Bernoulli(0.5)
        ),
    },
    AttributeError: {"no 'MultivariateNormal': write Independent(": lambda: d.MultivariateNormal},
}


@pytest.mark.parametrize(
    ("error", "words"), [(error, words) for error in REFUSED for words in REFUSED[error]]
)
def test_what_cannot_be_is_refused(error: type[Exception], words: str) -> None:
    with refused(words, error=error):
        REFUSED[error][words]()

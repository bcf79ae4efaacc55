"""Distributions beside PyTorch's, and their samples."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.ops.oracle import needs_torch, pytorch

import nnmpi
from nnmpi import distributions as d

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((2, 3, 4))
P, Q = RNG.random((2, 3, 4))
EDGES = np.array([0.0, 1.0, 0.3])

CASES: dict[str, tuple[str, tuple[str, ...], tuple[np.ndarray, ...], np.ndarray]] = {
    "normal": ("Normal", ("loc", "scale"), (A, np.exp(B)), RNG.standard_normal((3, 4))),
    "normal, more values": (
        "Normal",
        ("loc", "scale"),
        (A, np.exp(B)),
        RNG.standard_normal((5, 3, 4)),
    ),
    "bernoulli": ("Bernoulli", ("probs",), (P,), (Q > 0.5) * 1.0),
    "bernoulli, logits": ("Bernoulli", ("logits",), (A,), (Q > 0.5) * 1.0),
    "bernoulli, edges": ("Bernoulli", ("probs",), (EDGES,), np.array([0.0, 1.0, 1.0])),
    "categorical": ("Categorical", ("probs",), (P,), np.array([0, 3, 1])),
    "categorical, logits": ("Categorical", ("logits",), (A,), np.array([[0, 3, 1], [2, 2, 0]])),
    "categorical, one": ("Categorical", ("logits",), (A[0],), np.array(2)),
    "categorical, edges": ("Categorical", ("probs",), (EDGES,), np.array([1, 2])),
}


def made(case: str) -> list[tuple[Any, Any, list[Any]]]:
    """The distribution here and in PyTorch, what makes tensors, and the parameters."""
    torch, (name, options, values, _) = pytorch(), CASES[case]
    found = []
    for library, make in ((d, nnmpi.tensor), (torch.distributions, torch.tensor)):
        given = [make(v, requires_grad=True) for v in values]
        found.append(
            (getattr(library, name)(**dict(zip(options, given, strict=True))), make, given)
        )
    return found


def equal(results: list[Any], parameters: list[list[Any]]) -> None:
    a, b = results
    assert tuple(a.shape) == tuple(b.shape)
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)
    for y, given in zip(results, parameters, strict=True):
        for p in given:
            p.grad = None
        y.sum().backward()
    for p, q in zip(*parameters, strict=True):
        given = [np.zeros(p.shape) if x.grad is None else np.asarray(x.grad) for x in (p, q)]
        np.testing.assert_allclose(*given, rtol=1e-8, atol=1e-10)


@needs_torch
@pytest.mark.parametrize("case", CASES)
def test_probabilities_and_entropies_are_pytorchs(case: str) -> None:
    both, value = made(case), CASES[case][3]
    parameters = [given for *_, given in both]
    equal([dist.log_prob(make(value)) for dist, make, _ in both], parameters)
    both = made(case)
    equal([dist.entropy() for dist, *_ in both], [given for *_, given in both])
    assert tuple(both[0][0].batch_shape) == tuple(both[1][0].batch_shape)
    assert both[0][0].sample((2, 5)).shape == tuple(both[1][0].sample((2, 5)).shape)


PAIRS: dict[str, tuple[str, str, list[np.ndarray]]] = {
    "bernoulli": ("Bernoulli", "probs", [P, Q]),
    "bernoulli, edges": ("Bernoulli", "probs", [EDGES, np.array([0.5, 1.0, 0.0])]),
    "categorical": ("Categorical", "logits", [A, B]),
    "categorical, edges": ("Categorical", "probs", [EDGES, np.array([0.5, 0.2, 0.0])]),
}


@needs_torch
@pytest.mark.parametrize("case", PAIRS)
def test_divergences_are_pytorchs(case: str) -> None:
    torch, (name, option, values) = pytorch(), PAIRS[case]
    found = []
    for library, make in ((d, nnmpi.tensor), (torch.distributions, torch.tensor)):
        p, q = (getattr(library, name)(**{option: make(v)}) for v in values)
        found.append(library.kl_divergence(p, q).numpy())
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-12)


@needs_torch
def test_the_divergence_of_normals_is_pytorchs() -> None:
    torch = pytorch()
    results, parameters = [], []
    for library, make in ((d, nnmpi.tensor), (torch.distributions, torch.tensor)):
        given = [make(v, requires_grad=True) for v in (A, P, B, Q)]
        results.append(
            library.kl_divergence(library.Normal(*given[:2]), library.Normal(*given[2:]))
        )
        parameters.append(given)
    equal(results, parameters)


MEANS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "normal": (lambda: d.Normal(nnmpi.tensor([1.0, -2.0]), 0.5), [1.0, -2.0], 0.5),
    "bernoulli": (lambda: d.Bernoulli(nnmpi.tensor([0.2, 0.7])), [0.2, 0.7], 0.5),
    "categorical": (
        lambda: d.Categorical(nnmpi.tensor([[0, 1, 3.0], [1, 1, 0]])),
        [1.75, 0.5],
        0.5,
    ),
}


@pytest.mark.parametrize("case", MEANS)
def test_samples_have_the_means(case: str) -> None:
    make, means, deviation = MEANS[case]
    with nnmpi.seeded(3):
        drawn = make().sample((20_000,)).numpy()
    assert drawn.shape == (20_000, 2)
    np.testing.assert_allclose(drawn.mean(0), means, atol=5 * deviation / math.sqrt(20_000))


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


def test_what_cannot_be_is_refused() -> None:
    with refused("Normal: scale must be above 0"):
        d.Normal(0.0, -1.0)
    with refused("Bernoulli: probabilities from 0.5 to 2"):
        d.Bernoulli([0.5, 2.0])
    with refused("Categorical: probabilities must be at least 0"):
        d.Categorical([0.5, -2.0])
    for kind in (d.Bernoulli, d.Categorical):
        with refused("give either probs or logits"):
            kind()
        with pytest.raises(NotImplementedError, match="take sample, and log_prob"):
            kind([0.5, 0.5]).rsample()
    with pytest.raises(NotImplementedError, match="of Normal from Bernoulli: write the mean"):
        d.kl_divergence(d.Normal(0.0, 1.0), d.Bernoulli(0.5))
    with pytest.raises(AttributeError, match=r"no 'MultivariateNormal': write Independent\("):
        d.MultivariateNormal  # noqa: B018

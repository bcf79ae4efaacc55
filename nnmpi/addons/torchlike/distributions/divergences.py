"""The Kullback-Leibler divergences of distributions of the same kind."""

import math
from collections.abc import Callable
from typing import Any

from nnmpi.addons.torchlike.distributions.basic import Bernoulli, Categorical, Distribution, Normal
from nnmpi.addons.torchlike.distributions.joined import Independent
from nnmpi.addons.torchlike.functional import softplus
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import where


def _of_normals(p: Normal, q: Normal) -> Tensor:
    ratio = (p.scale / q.scale) ** 2
    d = ((p.loc - q.loc) / q.scale) ** 2
    divergence: Tensor = 0.5 * (ratio + d - 1 - ratio.log())
    return divergence


def _of_bernoullis(p: Bernoulli, q: Bernoulli) -> Tensor:
    ones = p.probs * (softplus(-q.logits) - softplus(-p.logits))
    zeros = (1 - p.probs) * (softplus(q.logits) - softplus(p.logits))
    ones = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, ones))
    zeros = where(p.probs == 1, 0.0, where(q.probs == 1, math.inf, zeros))
    return ones + zeros


def _of_categoricals(p: Categorical, q: Categorical) -> Tensor:
    terms = p.probs * (p.logits - q.logits)
    terms = where(p.probs == 0, 0.0, where(q.probs == 0, math.inf, terms))
    return terms.sum(-1)


def _of_independent(p: Independent, q: Independent) -> Tensor:
    if p.reinterpreted_batch_ndims != q.reinterpreted_batch_ndims:
        raise ValueError(
            f"kl_divergence: {p.reinterpreted_batch_ndims} and {q.reinterpreted_batch_ndims} axes "
            "are joined: the distributions must be over the same events"
        )
    return p.joined(kl_divergence(p.base_dist, q.base_dist))


_DIVERGENCES: dict[type[Distribution], Callable[[Any, Any], Tensor]] = {
    Normal: _of_normals,
    Bernoulli: _of_bernoullis,
    Categorical: _of_categoricals,
    Independent: _of_independent,
}
"""The function that computes KL(p || q), by the class of both distributions."""


def kl_divergence(p: Distribution, q: Distribution) -> Tensor:
    """Returns KL(p || q), the mean of log p - log q over p; both must be of the same class."""
    kinds = [k for k in _DIVERGENCES if isinstance(p, k) and isinstance(q, k)]
    if not kinds:
        raise NotImplementedError(
            f"kl_divergence of {type(p).__name__} from {type(q).__name__}: write the mean of "
            "p.log_prob(x) - q.log_prob(x) over samples x of p"
        )
    return _DIVERGENCES[kinds[0]](p, q)

"""The base of distributions, and those of single numbers: Normal, Bernoulli and Categorical."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.functional import log_softmax
from nnmpi.addons.torchlike.losses import binary_cross_entropy_with_logits
from nnmpi.autograd import Tensor, no_grad, on_host
from nnmpi.autograd.functional import broadcast_to, tensor
from nnmpi.nn.random_numbers import multinomial, rand, randn

Shape = tuple[int, ...]


class Distribution:
    """The base of distributions.

    batch_shape   the shape of the parameters: one distribution for each of their elements
    event_shape   the shape of one sample of one distribution: () for a number
    """

    batch_shape: Shape
    event_shape: Shape = ()

    @property
    def stddev(self) -> Tensor:
        """The standard deviations."""
        roots: Tensor = self.variance.sqrt()
        return roots

    @property
    def variance(self) -> Tensor:
        """The variances."""
        raise NotImplementedError

    def sample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Returns samples (*sample_shape, *batch_shape, *event_shape), without a gradient."""
        with no_grad():
            return self.drawn((*sample_shape, *self.batch_shape))

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Returns samples as `sample` does, but through which gradients of the parameters flow."""
        raise NotImplementedError(
            f"{type(self).__name__} has no rsample: its samples are no smooth function of the "
            "parameters; take sample, and log_prob of the samples"
        )

    def log_prob(self, value: Any) -> Tensor:
        """Returns the logarithm of the probability, or of its density, at a value."""
        raise NotImplementedError

    def entropy(self) -> Tensor:
        """Returns the entropy of each distribution."""
        raise NotImplementedError

    def drawn(self, shape: Shape) -> Tensor:
        """Draws samples (*shape, *event_shape) for `sample`; subclasses define it."""
        raise NotImplementedError


class Normal(Distribution):
    """Normal distributions of the given means and standard deviations."""

    def __init__(self, loc: Any, scale: Any, validate_args: bool | None = None) -> None:
        self.loc, self.scale = _broadcast(loc, scale)
        self.batch_shape = self.loc.shape
        if validate_args is not False and not (on_host(self.scale) > 0).all():
            raise ValueError("Normal: scale must be above 0: take exp or softplus of it")

    mean = mode = property(lambda self: self.loc)

    @property
    def stddev(self) -> Tensor:
        return self.scale

    @property
    def variance(self) -> Tensor:
        squares: Tensor = self.scale**2
        return squares

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        return self.drawn((*sample_shape, *self.batch_shape))

    def drawn(self, shape: Shape) -> Tensor:
        noise = randn(shape, dtype=self.loc.dtype, device=self.loc.device)
        drawn: Tensor = self.loc + self.scale * noise
        return drawn

    def log_prob(self, value: Any) -> Tensor:
        x = value if isinstance(value, Tensor) else _as(value, self.loc)
        d = (x - self.loc) / self.scale
        densities: Tensor = -0.5 * d * d - self.scale.log() - 0.5 * math.log(2 * math.pi)
        return densities

    def entropy(self) -> Tensor:
        entropies: Tensor = self.scale.log() + (0.5 + 0.5 * math.log(2 * math.pi))
        return entropies


class Bernoulli(Distribution):
    """Distributions of 1 with probability `probs`, else 0; `logits` are log(p / (1 - p))."""

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = _one_of("Bernoulli", probs, logits)
        self.batch_shape = given.shape
        if logits is not None:
            self.logits, self.probs = given, given.sigmoid()
            return
        if validate_args is not False:
            _check_probabilities("Bernoulli", given)
        p = _inside(given)
        self.probs, self.logits = given, p.log() - (1 - p).log()

    mean = property(lambda self: self.probs)

    @property
    def variance(self) -> Tensor:
        variances: Tensor = self.probs * (1 - self.probs)
        return variances

    def drawn(self, shape: Shape) -> Tensor:
        u = rand(shape, dtype=self.probs.dtype, device=self.probs.device)
        drawn: Tensor = (u < self.probs).astype(self.probs.dtype)
        return drawn

    def log_prob(self, value: Any) -> Tensor:
        logits, y = _broadcast(self.logits, value)
        return -binary_cross_entropy_with_logits(logits, y, reduction="none")

    def entropy(self) -> Tensor:
        return binary_cross_entropy_with_logits(self.logits, self.probs, reduction="none")


class Categorical(Distribution):
    """Distributions over the classes 0 to K - 1, with probabilities, or `logits`, along the last
    axis. Probabilities are divided by their sum."""

    def __init__(
        self, probs: Any = None, logits: Any = None, validate_args: bool | None = None
    ) -> None:
        given = _one_of("Categorical", probs, logits)
        if given.ndim < 1:
            raise ValueError("Categorical: give probabilities along an axis, not a number")
        self.batch_shape = given.shape[:-1]
        if logits is not None:
            self.logits = log_softmax(given, dim=-1)
            self.probs = self.logits.exp()
            return
        if validate_args is not False and not (on_host(given) >= 0).all():
            raise ValueError("Categorical: probabilities must be at least 0; or give logits=")
        self.probs = given / given.sum(-1, True)
        self.logits = _inside(self.probs).log()

    mode = property(lambda self: self.probs.argmax(-1))

    def drawn(self, shape: Shape) -> Tensor:
        K, rows = self.probs.shape[-1], math.prod(self.batch_shape)
        draws = math.prod(shape) // max(rows, 1)
        drawn = multinomial(self.probs.reshape(-1, K), draws, replacement=True)
        return drawn.t().reshape(shape)

    def log_prob(self, value: Any) -> Tensor:
        given, K = on_host(value), self.logits.shape[-1]
        classes = given.astype("int64")
        if ((classes != given) | (classes < 0) | (classes >= K)).any():
            raise ValueError(f"Categorical.log_prob: give classes from 0 to {K - 1}")
        shape = np.broadcast_shapes(classes.shape, self.batch_shape)
        logits = broadcast_to(self.logits, (*shape, self.logits.shape[-1]))
        index = np.ix_(*map(np.arange, shape)) if shape else ()
        chosen: Tensor = logits[(*index, np.broadcast_to(classes, shape))]
        return chosen

    def entropy(self) -> Tensor:
        entropies: Tensor = -(self.probs * self.logits.clamp(min=_least(self.logits))).sum(-1)
        return entropies


def _broadcast(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Returns two parameters, which may be numbers, as float tensors broadcast to one shape; a
    number gets the dtype of the other."""
    like = next((x for x in (a, b) if isinstance(x, Tensor)), None)
    if like is None:
        like = tensor(np.zeros((), np.result_type(*map(_float_type, (a, b)))))
    tensors = [_as(x, like) for x in (a, b)]
    shape = np.broadcast_shapes(*(t.shape for t in tensors))
    first, second = (broadcast_to(t, shape) if t.shape != shape else t for t in tensors)
    return first, second


def _float_type(x: Any) -> Any:
    return x.dtype if isinstance(x, np.ndarray) and x.dtype.kind == "f" else np.float32


def _as(x: Any, like: Tensor) -> Tensor:
    """Returns a number, an array or a tensor in the dtype of another tensor."""
    if not isinstance(x, Tensor):
        return tensor(x, dtype=like.dtype, device=like.device)
    return x if x.dtype == like.dtype else x.astype(like.dtype)


def _one_of(owner: str, probs: Any, logits: Any) -> Tensor:
    """Returns the parameter of a distribution that is given, `probs` or `logits`, as a float
    tensor; raises ValueError, which names the distribution `owner`, unless exactly one is given."""
    if (probs is None) == (logits is None):
        raise ValueError(f"{owner}: give either probs or logits")
    given = probs if logits is None else logits
    t: Tensor = given if isinstance(given, Tensor) else tensor(np.asarray(given))
    return t if t.dtype.kind == "f" or t.dtype.name == "bfloat16" else t.astype("float32")


def _check_probabilities(owner: str, p: Tensor) -> None:
    values = on_host(p)
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        raise ValueError(
            f"{owner}: probabilities from {values.min():g} to {values.max():g} must be 0 to 1; or "
            "give logits="
        )


def _inside(p: Tensor) -> Tensor:
    """Returns probabilities limited to [eps, 1 - eps], where eps is the precision of their dtype,
    so that the logarithms of p and of 1 - p are finite; PyTorch does the same."""
    eps = float(np.finfo(p.dtype).eps)
    return p.clamp(eps, 1 - eps)


def _least(t: Tensor) -> float:
    return float(np.finfo(t.dtype).min)

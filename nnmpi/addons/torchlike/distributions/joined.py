"""Distributions that are made of others: Independent and MixtureSameFamily."""

from collections.abc import Sequence
from typing import Any

from nnmpi.addons.torchlike.distributions.basic import Categorical, Distribution, Shape
from nnmpi.addons.torchlike.functions.formulas import logsumexp
from nnmpi.addons.torchlike.functions.gathering import gather
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import tensor


class Independent(Distribution):
    """A distribution of arrays of independent elements: the last `reinterpreted_batch_ndims` batch
    axes of the base become axes of a sample, over which the log-probability is summed."""

    def __init__(
        self,
        base_distribution: Any,
        reinterpreted_batch_ndims: int,
        validate_args: bool | None = None,
    ) -> None:
        base, n = base_distribution, reinterpreted_batch_ndims
        left = len(base.batch_shape) - n
        if n < 0 or left < 0:
            raise ValueError(
                f"Independent: {n} axes of distributions of shape {base.batch_shape}: give a "
                "number from 0 to that of its axes"
            )
        self.base_dist, self.reinterpreted_batch_ndims = base, n
        self.batch_shape = base.batch_shape[:left]
        self.event_shape = base.batch_shape[left:] + base.event_shape

    mean = property(lambda self: self.base_dist.mean)
    mode = property(lambda self: self.base_dist.mode)

    @property
    def variance(self) -> Tensor:
        variances: Tensor = self.base_dist.variance
        return variances

    def joined(self, values: Tensor) -> Tensor:
        """Sums log-probabilities or entropies over axes that belong to an event."""
        n = self.reinterpreted_batch_ndims
        return values.sum(axis=tuple(range(-n, 0))) if n else values

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        samples: Tensor = self.base_dist.rsample(sample_shape)
        return samples

    def drawn(self, shape: Shape) -> Tensor:
        samples: Tensor = self.base_dist.drawn(
            (*shape, *self.base_dist.batch_shape[len(self.batch_shape) :])
        )
        return samples

    def log_prob(self, value: Any) -> Tensor:
        return self.joined(self.base_dist.log_prob(value))

    def entropy(self) -> Tensor:
        return self.joined(self.base_dist.entropy())


class MixtureSameFamily(Distribution):
    """Mixtures of the distributions along the last batch axis of `component_distribution`, one of
    which the Categorical `mixture_distribution` draws for each sample."""

    def __init__(
        self,
        mixture_distribution: Categorical,
        component_distribution: Any,
        validate_args: bool | None = None,
    ) -> None:
        mixture, component = mixture_distribution, component_distribution
        if not isinstance(mixture, Categorical):
            raise ValueError(
                f"MixtureSameFamily: the mixture is a {type(mixture).__name__}; it must be a "
                "Categorical"
            )
        components = (*mixture.batch_shape, mixture.probs.shape[-1])
        if component.batch_shape[-len(components) :] != components:
            raise ValueError(
                f"MixtureSameFamily: components of shape {component.batch_shape} for a Categorical "
                f"of shape {components}: the last axes must be equal"
            )
        self.mixture_distribution, self.component_distribution = mixture, component
        self.batch_shape, self.event_shape = component.batch_shape[:-1], component.event_shape

    @property
    def mean(self) -> Tensor:
        """The means of the mixtures."""
        return self._mixed(self.component_distribution.mean)

    @property
    def variance(self) -> Tensor:
        component = self.component_distribution
        between = self._mixed((component.mean - self._beside(self.mean)) ** 2)
        return self._mixed(component.variance) + between

    def _beside(self, values: Tensor) -> Tensor:
        """Returns values of mixtures with an axis for components before event axes."""
        return values.unsqueeze(-1 - len(self.event_shape))

    def _mixed(self, values: Tensor) -> Tensor:
        """Averages values of the components, weighted by the components' probabilities."""
        probs = self.mixture_distribution.probs
        probs = probs.reshape(*probs.shape, *(1,) * len(self.event_shape))
        sums: Tensor = (probs * values).sum(axis=-1 - len(self.event_shape))
        return sums

    def drawn(self, shape: Shape) -> Tensor:
        which = self.mixture_distribution.drawn(shape)
        count = self.mixture_distribution.probs.shape[-1]
        values: Tensor = self.component_distribution.drawn((*shape, count))
        index = which.reshape(*shape, 1, *(1,) * len(self.event_shape))
        chosen = gather(values, len(shape), index.expand(*shape, 1, *self.event_shape))
        return chosen.squeeze(len(shape))

    def log_prob(self, value: Any) -> Tensor:
        given = value if isinstance(value, Tensor) else tensor(value)
        of_components = self.component_distribution.log_prob(self._beside(given))
        return logsumexp(of_components + self.mixture_distribution.logits, -1)

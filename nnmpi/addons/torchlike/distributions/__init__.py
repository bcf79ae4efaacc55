"""PyTorch's `distributions`: Normal, Bernoulli, Categorical, mixtures, and their divergences.

Samples depend on the seed of `nnmpi.manual_seed` and on the number of random tensors drawn before,
so they are the same on all ranks that draw the same ones. A model for a Trainer draws by
`nnmpi.random`, and may use `log_prob` and `entropy`.
"""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.addons.torchlike.distributions.basic import Bernoulli, Categorical, Distribution, Normal
from nnmpi.addons.torchlike.distributions.divergences import kl_divergence
from nnmpi.addons.torchlike.distributions.joined import Independent, MixtureSameFamily

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Independent", "MixtureSameFamily", "Normal",
    "kl_divergence",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.distributions", "distributions")

"""PyTorch's `distributions`: Normal, Bernoulli, Categorical, mixtures, and their divergences.

Samples depend on the seed of `nnmpi.manual_seed` and on the number of random tensors drawn before,
so they are the same on all ranks that draw the same ones. A model for a Trainer draws by
`nnmpi.random`, and may use `log_prob` and `entropy`.
"""

from typing import TYPE_CHECKING

from nnmpi.autograd import replacements
from nnmpi.distributions.basic import Bernoulli, Categorical, Distribution, Normal
from nnmpi.distributions.divergences import kl_divergence
from nnmpi.distributions.joined import Independent, MixtureSameFamily

__all__ = [
    "Bernoulli", "Categorical", "Distribution", "Independent", "MixtureSameFamily", "Normal",
    "kl_divergence",
]  # fmt: skip

__path__.append(replacements.ABSENT)

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.distributions", "distributions")

"""Resuming with other options: is the result the same, what is refused."""

from enum import Enum
from typing import NamedTuple


class ResumeEffect(Enum):
    """How an option's change affects a resumed run, from same bits to refused."""

    SAME = "the same bits"
    EQUAL = "equal to one rank, but sums are added in another order"
    WARNED = "another result, with a warning"
    REFUSED = "refused"


class ResumeRule(NamedTuple):
    """The effect if a run is resumed with another value of an option (or of another fact, such as
    the number of ranks); `why` is the reason.

    beside      the name of a second option: the rule applies only if that one has the same value in
                both runs; "": the rule always applies
    batch_norm  True if models with BatchNorm are refused, since their statistics are computed over
                a micro-batch, and micro-batches would change
    """

    effect: ResumeEffect
    why: str
    beside: str = ""
    batch_norm: bool = False


ANOTHER_MODEL = ResumeRule(ResumeEffect.REFUSED, "it would be another model")
OTHER_SAMPLES = ResumeRule(ResumeEffect.REFUSED, "the samples would differ")
OTHER_BATCHES = ResumeRule(ResumeEffect.REFUSED, "batches and random numbers would differ")
OTHER_STATE = ResumeRule(
    ResumeEffect.REFUSED,
    "the saved state of the optimizer fits only the rule and type of that run",
)
OTHER_STEPS = ResumeRule(ResumeEffect.WARNED, "the steps from here on differ")
OTHER_LENGTH = ResumeRule(
    ResumeEffect.WARNED,
    "a schedule over all steps, such as cosine, has other rates from here on",
)
OTHER_PARTS = ResumeRule(
    ResumeEffect.EQUAL, "gradients are sums over micro-batches or slices", batch_norm=True
)
OTHER_RANKS = ResumeRule(
    ResumeEffect.EQUAL, "which rank computes something does not change its result"
)
OTHER_OUTPUT = ResumeRule(ResumeEffect.SAME, "only what is read and written, and when")

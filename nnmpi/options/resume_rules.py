"""The effect of an option, or a fact, of a run on the run that continues it with another value."""

from enum import Enum
from typing import NamedTuple


class ResumeEffect(Enum):
    """The effect on a resumed run if a value differs."""

    SAME = "the same bits"
    EQUAL = "equal to one rank, but sums are added in another order"
    WARNED = "another result, with a warning"
    REFUSED = "refused"


class ResumeRule(NamedTuple):
    """The effect on the run that resumes if an option, or a fact of a run, differs.

    beside      an option that must not differ for the rule to apply
    batch_norm  refused for models with BatchNorm, whose statistics are those of each micro-batch
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

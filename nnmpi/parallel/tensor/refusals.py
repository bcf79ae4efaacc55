"""Tensor parallelism: what cannot be combined with other options."""

from nnmpi.parallel.refusals import NO_SERVERS, ONE, SLOWING, WHOLE_MODEL, Need, Refusal

REFUSALS = (
    Refusal("tp", "servers", WHOLE_MODEL, NO_SERVERS),
    Refusal("tp", "slow_rank", SLOWING, ONE),
    Refusal("tp", "jitter", SLOWING, ONE),
)

NEEDS: tuple[Need, ...] = ()

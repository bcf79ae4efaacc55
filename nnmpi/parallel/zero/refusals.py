"""ZeRO: what cannot be combined with other options."""

from nnmpi.parallel.refusals import NO_SERVERS, ONE, Need, Refusal

REFUSALS = (
    Refusal("zero", "servers", "servers hold all parameters and optimizer state", NO_SERVERS),
    Refusal("zero", "slow_rank", "slowing works on ranks with whole copies", ONE),
    Refusal("zero", "jitter", "slowing works on ranks with whole copies", ONE),
    Refusal(
        "zero 2 or 3",
        "allreduce without halves",
        "gradients are scattered to ranks that keep a part each: only ring, p2p and halving can",
        "use --allreduce ring, or --zero 1",
    ),
)

NEEDS: tuple[Need, ...] = ()

"""Pipelines: what cannot be combined with other options."""

from nnmpi.parallel.refusals import NO_SERVERS, ONE, SLOWING, WHOLE_MODEL, Need, Refusal

REFUSALS = (
    Refusal("pipedream", "micro_batches", "a batch is one micro-batch and one step", ONE),
    Refusal("pipedream", "recompute", "activations of few batches are kept, p at most", ONE),
    Refusal("pipedream", "clip_norm", "no stage waits for the norm over all of them", ONE),
    Refusal("pipedream", "verify", "it is not meant to equal one rank", ONE),
    Refusal("pipedream", "slow_rank", SLOWING, ONE),
    Refusal("pipedream", "jitter", SLOWING, ONE),
    Refusal("pipedream", "tp", "ranks of a stage would take messages in different orders", ONE),
    Refusal("pipedream", "zero", "each stage is on one rank, which has all of its state", ONE),
    Refusal("pp", "servers", WHOLE_MODEL, NO_SERVERS),
    Refusal("pp", "slow_rank", SLOWING, ONE),
    Refusal("pp", "jitter", SLOWING, ONE),
    Refusal("schedule", "servers", WHOLE_MODEL, NO_SERVERS),
    Refusal("recompute", "servers", WHOLE_MODEL, NO_SERVERS),
)

NEEDS = (
    Need("virtual_stages", "schedule interleaved", "in other schedules a rank has one stage"),
    Need("cut", "pp", "the model is cut between the ranks along pp"),
    Need("vertical_sync", "schedule pipedream", "others never have several versions of weights"),
)

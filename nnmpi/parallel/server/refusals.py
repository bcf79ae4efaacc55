"""Parameter servers: what cannot be combined with other options."""

from nnmpi.parallel.refusals import NO_SERVERS, Need, Refusal

OWN_SUM = "only ranks that sum gradients themselves use it"

REFUSALS = (
    Refusal("allreduce", "servers", OWN_SUM, NO_SERVERS),
    Refusal("bucket_mb", "servers", OWN_SUM, NO_SERVERS),
    Refusal("overlap", "servers", OWN_SUM, NO_SERVERS),
    Refusal("progress", "servers", OWN_SUM, NO_SERVERS),
)

NEEDS = (Need("staleness", "sync ssp", "bsp allows no staleness, asp any"),)

"""Checks (--verify, --reproducible): what cannot be combined with other options."""

from nnmpi.parallel.refusals import NO_SERVERS, ONE, Need, Refusal

WHOLE_SLICE = "one rank computes a slice, forward and back, before the next one"
TWO = "start it with mpirun -n 2, or leave verify out"

REFUSALS = (
    Refusal("reproducible", "micro_batches", "slices are micro-batches already", ONE),
    Refusal("reproducible", "servers", "every rank updates its own copy of the parameters", ONE),
    Refusal("reproducible", "allreduce", "gradients are summed along the tree over slices", ONE),
    Refusal("reproducible", "bucket_mb", "the gradient of a slice is summed as a whole", ONE),
    Refusal("reproducible", "overlap", "a slice is summed after its backward pass", ONE),
    Refusal("reproducible", "progress", "a slice is summed after its backward pass", ONE),
    Refusal("reproducible", "device", "the bits are promised on the CPU only", ONE),
    Refusal("verify", "one rank", "there is nothing to compare it with", TWO),
    Refusal("verify", "servers", "it compares copies that ranks update themselves", NO_SERVERS),
    Refusal("reproducible", "pp", WHOLE_SLICE, ONE),
    Refusal("reproducible", "schedule", WHOLE_SLICE, ONE),
    Refusal("reproducible", "recompute", WHOLE_SLICE, ONE),
    Refusal("reproducible", "tp", "the tree adds up slices, not parts of a matrix product", ONE),
    Refusal("reproducible", "zero", "every rank updates its own copy of the parameters", ONE),
)

NEEDS = (Need("slices", "reproducible", "a batch is cut into slices for that alone"),)

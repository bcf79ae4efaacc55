"""Data parallelism: what cannot be combined with other options."""

from nnmpi.parallel.refusals import Need, Refusal

REFUSALS = (
    Refusal(
        "device",
        "several ranks",
        "gradients are summed on the host",
        "use one rank or --device cpu",
    ),
)

NEEDS = (Need("ranks", "dry_run", "a run has the ranks that mpirun starts"),)

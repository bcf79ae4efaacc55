"""Adds the value "nccl" to the option --allreduce: NCCL, NVIDIA's library, sums gradients between
GPUs."""

from nnmpi.options.features import AddOnOptions, Feature, choice

FEATURES = (
    Feature(
        "nccl",
        choice("allreduce", "nccl"),
        requires={"device cuda": "NCCL sums what is in the memory of GPUs"},
        remedy="use --allreduce ring",
        covers="--allreduce nccl",
    ),
)

ADDED = AddOnOptions(features=FEATURES, choices={"allreduce": ("nccl",)})

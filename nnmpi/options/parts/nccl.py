"""The value "nccl" of --allreduce: gradients are summed by NCCL."""

from nnmpi.options.features import Feature, Part, choice

FEATURES = (
    Feature(
        "nccl",
        choice("allreduce", "nccl"),
        requires={"device cuda": "NCCL sums what is in the memory of GPUs"},
        remedy="use --allreduce ring",
        covers="--allreduce nccl",
    ),
)

PART = Part(features=FEATURES, choices={"allreduce": ("nccl",)})

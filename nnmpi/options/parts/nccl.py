"""Options of sums by NCCL."""

from dataclasses import dataclass

from nnmpi.options.features import Feature, Part, choice


@dataclass(frozen=True, kw_only=True)
class Options:
    """No options of its own."""


FEATURES = (
    Feature(
        "nccl",
        choice("allreduce", "nccl"),
        requires={"device cuda": "NCCL sums what is in the memory of GPUs"},
        remedy="use --allreduce ring",
    ),
)

PART = Part(Options, FEATURES, {"allreduce": ("nccl",)})

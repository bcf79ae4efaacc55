"""Options of compressed gradients."""

from dataclasses import dataclass

from nnmpi.options import terms
from nnmpi.options.features import ALL_REDUCE, EXACT_SUMS, WHOLE_STATE, Feature, Part
from nnmpi.options.groups import reduce_option
from nnmpi.options.resume_rules import ResumeEffect, ResumeRule

REST = ResumeRule(ResumeEffect.WARNED, "other parts of gradients are sent from here on")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of compressed gradients."""

    compress: str | None = reduce_option(
        None,
        "send less of gradients, and the rest in later steps: topk:FRACTION of the entries, "
        "sign (1 bit), powersgd:RANK (factors of matrices), int8 or package.module:CODEC",
        custom=True,
        form=terms.compression,
        resume=REST,
    )


FEATURES = (
    Feature(
        "compress",
        relies_on=(EXACT_SUMS, ALL_REDUCE, WHOLE_STATE),
        breaks={EXACT_SUMS: "each rank keeps a part of its gradient for later steps"},
        conflicts={
            "dtype float16": "what is kept would have the loss scale of its step",
            "allreduce in memory": "sums in memory of a node send nothing",
            "nccl": "NCCL adds up numbers, and compressed gradients are bytes",
        },
    ),
)

PART = Part(Options, FEATURES)

"""Options for checks and experiments: comparison with one rank, equal bits, slow ranks."""

from dataclasses import dataclass

from nnmpi.options import resume_rules as rules
from nnmpi.options.features import (
    ALL_REDUCE,
    EXACT_SUMS,
    PLAIN_PASSES,
    WHOLE_MODEL,
    WHOLE_STATE,
    AddOnOptions,
    Feature,
)
from nnmpi.options.groups import equality_option, sync_option
from nnmpi.options.resume_rules import ResumeEffect, ResumeRule
from nnmpi.options.value_forms import FROM_1


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options --verify, --reproducible, --slices, --slow-rank and --jitter."""

    slow_rank: str | None = sync_option(
        None, "R:FACTOR[,R:FACTOR]: slow down rank R by this factor, for experiments"
    )
    jitter: str | None = sync_option(
        None, "P:FACTOR: slow down each rank in a random fraction P of its steps, for experiments"
    )
    verify: bool = equality_option(False, "also train on one rank, and compare after each step")
    reproducible: bool = equality_option(
        False, "same bits on any number of ranks, up to --slices", resume=rules.OTHER_PARTS
    )
    slices: int = equality_option(
        8,
        "parts of a batch that --reproducible computes one by one",
        FROM_1,
        alias="shards",
        resume=ResumeRule(
            ResumeEffect.REFUSED,
            "sums over the tree of slices would have other bits",
            beside="reproducible",
        ),
    )


FEATURES = (
    Feature(
        "reproducible",
        relies_on=(EXACT_SUMS, WHOLE_MODEL, PLAIN_PASSES, WHOLE_STATE),
        breaks={ALL_REDUCE: "those of slices are added up along a tree"},
        conflicts={
            "device": "the same bits are guaranteed only on the CPU",
            "micro_batches": "slices are micro-batches already",
            "16 bits": "the tree over slices adds up only float32 and float64",
            "memory": "one rank computes a slice, forward and back, before the next one",
        },
    ),
    Feature("slices", requires={"reproducible": "only that cuts a batch into slices"}),
    Feature(
        "one rank",
        lambda config, ranks: "1 rank" if ranks == 1 else "",
        remedy="start it with mpirun -n 2, or leave verify out",
        covers="a run without mpirun",
    ),
    Feature(
        "verify",
        relies_on=(EXACT_SUMS,),
        conflicts={
            "one rank": "there is nothing to compare it with",
            "memory": "the single rank that it compares with needs memory too",
        },
    ),
    Feature(
        "verify along tp",
        lambda config, ranks: "verify along tp" * (config.verify and config.tp > 1),
        conflicts={"layerwise": "one rank has no norms of parameters that tp cuts"},
    ),
    Feature("slow_rank", relies_on=(WHOLE_MODEL, WHOLE_STATE)),
    Feature("jitter", relies_on=(WHOLE_MODEL, WHOLE_STATE)),
)

ADDED = AddOnOptions(Options, FEATURES)

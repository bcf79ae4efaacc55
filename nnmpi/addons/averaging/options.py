"""Options of data-parallel replicas that make steps alone and average their parameters now and
then: --sync local or gossip, --every, --outer and others."""

from dataclasses import dataclass, fields
from functools import partial

from nnmpi.options.features import EXACT_SUMS, AddOnOptions, Feature, choice
from nnmpi.options.groups import sync_option
from nnmpi.options.resume_rules import ResumeEffect, ResumeRule
from nnmpi.options.value_forms import ABOVE_0, FROM_0, FROM_0_BELOW_1, FROM_1

OUTERS, GRAPHS = ("sgd", "nesterov"), ("ring", "torus", "exponential", "complete")
OUTER_DTYPES = ("float32", "bfloat16", "int8")
OUTER = "only local steps have an outer optimizer"

_option = partial(
    sync_option,
    resume=ResumeRule(
        ResumeEffect.WARNED, "replicas differ by other steps from here on", beside="sync"
    ),
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of data-parallel replicas that make steps alone and average their parameters now and
    then: --every, --fragments, --outer and others, for --sync local or gossip."""

    every: int = _option(
        30,
        "steps that replicas make alone; with --sync gossip, before all are averaged",
        FROM_1,
    )
    fragments: int = _option(
        1,
        "parts of the model that replicas exchange in turn, with --sync local",
        FROM_1,
    )
    apply_after: int = _option(
        0,
        "steps that replicas make before they use a fragment that they have sent",
        FROM_0,
    )
    graph: str = _option("ring", "neighbours of a replica, with --sync gossip", choices=GRAPHS)
    outer: str = _option(
        "nesterov",
        "rule that applies the mean change of the replicas, with --sync local",
        choices=OUTERS,
    )
    outer_lr: float = _option(0.7, "rate of --outer; 1 with sgd takes the mean as it is", ABOVE_0)
    outer_momentum: float = _option(0.9, "momentum of --outer nesterov", FROM_0_BELOW_1)
    outer_dtype: str | None = _option(
        None,
        "type in which replicas send their changes, with --sync local; default: that of values",
        choices=OUTER_DTYPES,
    )


FEATURES = (
    Feature(
        "averaging",
        choice("sync", "local", "gossip"),
        relies_on=(EXACT_SUMS,),
        breaks={EXACT_SUMS: "replicas make steps of their own"},
        conflicts={"dtype float16": "each replica would have a loss scale of its own"},
        covers="--sync local or gossip",
    ),
    Feature("every", requires={"sync local or gossip": "in other modes ranks meet in every step"}),
    Feature(
        "fragments",
        requires={"sync local": "only local steps exchange parts of the model in turn"},
    ),
    Feature(
        "apply_after", requires={"sync local": "only local steps go on while replicas exchange"}
    ),
    Feature("outer_dtype", requires={"sync local": "only local steps send changes of replicas"}),
    Feature("graph", requires={"sync gossip": "only gossip has neighbours"}),
    Feature("outer", requires={"sync local": OUTER}),
    Feature("outer_lr", requires={"sync local": OUTER}),
    Feature(
        "outer_momentum",
        conflicts={"outer sgd": "only nesterov has a momentum there"},
        requires={"sync local": OUTER},
    ),
    Feature("outer sgd", choice("outer", "sgd")),
)

ADDED = AddOnOptions(
    Options,
    FEATURES,
    {"sync": ("local", "gossip")},
    meetings=tuple(option.name for option in fields(Options)),
)

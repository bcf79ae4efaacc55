"""FEATURES: which options rely on which properties of a run (such as steps that all ranks make
together), and which break them.

The command line checks them before anything is built, and tests try every pair that follows.
"""

from itertools import chain

from nnmpi.addons import table
from nnmpi.arrays.dtypes import HALVES
from nnmpi.collectives.algorithms import REDUCE_SCATTERS
from nnmpi.options.config import Config
from nnmpi.options.features import (
    ALL_REDUCE,
    EXACT_SUMS,
    HOST_MEMORY,
    OPTIONS,
    PLAIN_PASSES,
    STEPS_TOGETHER,
    WHOLE_MATRICES,
    WHOLE_MODEL,
    WHOLE_STATE,
    Feature,
    Property,
    choice,
    given,
    refusals,
    requirements,
)
from nnmpi.options.value_forms import layout_along

PLAIN = Config()
"""A config with all options at their defaults."""


_LIBRARIES = tuple(table("library_sums"))
_WITH_HALVES = ("ring", "p2p", "halving", *_LIBRARIES)


def _without_halves(config: Config, ranks: int) -> str:
    halves = config.allreduce in ("auto", *_LIBRARIES, *REDUCE_SCATTERS)
    return "" if halves else f"allreduce {config.allreduce}"


_layout = layout_along("tp")


def _positions(config: Config, ranks: int) -> str:
    if not config.cuts_positions:
        return ""
    return given(config, "sequence_parallel") or _layout(config, ranks)


FEATURES: tuple[Feature, ...] = (
    # axes of ranks
    Feature(
        "pp",
        breaks={WHOLE_MODEL: "each rank has some layers"},
    ),
    Feature(
        "tp",
        relies_on=(STEPS_TOGETHER,),
        breaks={
            WHOLE_MODEL: "each rank has some channels of the layers",
            WHOLE_MATRICES: "ranks update parts",
        },
    ),
    Feature(
        "positions along tp",
        _positions,
        covers="--sequence-parallel, or a --layout that cuts positions",
    ),
    Feature("sequence_parallel", requires={"tp": "positions are divided among the ranks along tp"}),
    Feature(
        "layout",
        _layout,
        requires={"tp": "it says how the ranks along tp share layers"},
    ),
    # ZeRO
    Feature(
        "zero",
        relies_on=(EXACT_SUMS,),
        breaks={
            WHOLE_STATE: "each rank has a part",
            WHOLE_MATRICES: "ranks update parts",
        },
    ),
    # it holds with dp 1 too, where the store is "local": the step asks `a.store.scatters`
    Feature(
        "zero 2 or 3",
        lambda config, ranks: f"zero {config.zero}" if config.zero > 1 else "",
        conflicts={
            "allreduce without halves": "each rank needs the sum of its part only, which "
            f"{', '.join(_WITH_HALVES[:-1])} and {_WITH_HALVES[-1]} give"
        },
    ),
    # pipelines
    Feature("schedule", breaks={PLAIN_PASSES: "a schedule orders passes of stages"}),
    Feature("recompute"),
    Feature(
        "recompute stage",
        choice("recompute", "stage"),
        relies_on=(STEPS_TOGETHER,),
        breaks={PLAIN_PASSES: "stages run forward again"},
    ),
    Feature("micro_batches"),
    Feature(
        "virtual_stages",
        requires={"schedule interleaved": "others decide how many stages a rank has"},
    ),
    Feature("cut", requires={"pp": "the model is cut between the ranks along pp"}),
    # sums
    Feature("allreduce", relies_on=(ALL_REDUCE,)),
    Feature("bucket_mb", relies_on=(ALL_REDUCE,)),
    Feature("overlap", relies_on=(ALL_REDUCE,)),
    Feature("progress", relies_on=(ALL_REDUCE,)),
    Feature(
        "allreduce mpi",
        choice("allreduce", "mpi"),
        remedy="use --allreduce ring, or leave reduce_dtype out",
    ),
    Feature(
        "allreduce without halves",
        _without_halves,
        remedy="use --allreduce ring, or --zero 1",
        covers="an --allreduce without a separate reduce-scatter",
    ),
    Feature(
        "allreduce in memory",
        choice("allreduce", "shared", "hierarchical"),
        relies_on=(HOST_MEMORY,),
        remedy="use --allreduce ring",
        covers="--allreduce shared or hierarchical",
    ),
    Feature(
        "reduce_dtype",
        conflicts={
            "another dtype": "partial sums are float32, or have the type of gradients",
            "allreduce mpi": "MPI cannot add up 16-bit floats",
        },
    ),
    Feature(
        "another dtype",
        lambda config, ranks: (
            f"dtype {config.dtype}" if config.dtype != config.reduce_dtype else ""
        ),
        remedy="use one type for both, or leave reduce_dtype out",
        covers="a --dtype that is not that of --reduce-dtype",
    ),
    # what is computed, and on what
    Feature("16 bits", choice("dtype", *HALVES), covers=f"--dtype {' or '.join(HALVES)}"),
    Feature("dtype float16", choice("dtype", "float16"), remedy="use --dtype bfloat16"),
    Feature("clip_norm"),
    Feature("weight_decay_of", requires={"weight_decay": "without it no parameter decays"}),
    Feature(
        "device",
        breaks={HOST_MEMORY: "those of a GPU are in its own"},
        remedy="use --device cpu",
    ),
    # evaluations while it is trained
    Feature("evaluate_every", relies_on=(STEPS_TOGETHER,)),
    # files
    Feature("load_partial", requires={"load": "it says how much of that file must match"}),
    Feature("append", requires={"log": "it says what to do with that file"}),
    *chain.from_iterable(part.features for part in OPTIONS.rows()),
)

REFUSALS = tuple(refusals(FEATURES))
"""The pairs of features that cannot be combined."""

REQUIREMENTS = requirements(FEATURES)


def check(config: Config, ranks: int) -> None:
    """Raises ValueError for options that cannot be combined, or lack one that they need."""
    asked = {feature.name: feature.asked(config, ranks) for feature in FEATURES}
    for feature, beside, reason, remedy in REFUSALS:
        first, second = asked[feature.name], asked[beside.name]
        if first and second:
            raise ValueError(f"{first} with {second}: {reason}; {remedy}")
    for feature, other, reason in REQUIREMENTS:
        if asked[feature.name] and not is_met(other, config):
            raise ValueError(
                f"{asked[feature.name]} without {other}: {reason}; "
                f"add --{other.replace('_', '-')}, or leave {feature.name} out"
            )


def relies_on(wanted: Property, config: Config, ranks: int) -> bool:
    """True if an option of the config needs runs to have the property `wanted`."""
    return any(f.asked(config, ranks) for f in FEATURES if wanted in f.relies_on)


def why_not(option: str, config: Config, ranks: int) -> str:
    """Returns why `option` cannot be added to a config on so many ranks; "" if it can."""
    rows = (row for row in REFUSALS if row.feature.name == option)
    asked_rows = ((row.beside.asked(config, ranks), row.reason) for row in rows)
    return next((f"{asked}: {reason}" for asked, reason in asked_rows if asked), "")


def is_met(other: str, config: Config) -> bool:
    """True if a config has `other`, as "pp" or "schedule gpipe or 1f1b"."""
    name, _, value = other.partition(" ")
    if value:
        return str(getattr(config, name)) in value.split(" or ")
    return bool(given(config, name))

"""Options that search for the fastest layout, or print one without training."""

from dataclasses import dataclass
from typing import Any

from nnmpi.options.features import STEPS_TOGETHER, AddOnOptions, Feature, given
from nnmpi.options.groups import layout_option, other_option
from nnmpi.options.value_forms import FROM_1


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options that search for the fastest layout, or print one without training."""

    plan: str | None = layout_option(
        None,
        "train with the fastest layout, by measurements at the start (auto) or from a FILE.json",
    )
    dry_run: bool = other_option(
        False, "print the layout, memory, messages and steps, without training"
    )
    ranks: int | None = other_option(None, "with --dry-run: assume this number of ranks", FROM_1)


TRAINED = ("model", "data", "training")
"""The groups of options that determine what is trained, independent of the layout."""

PLANNED = (
    *("dp", "pp", "tp", "cp", "layout", "zero", "sequence_parallel"),
    *("schedule", "micro_batches", "recompute", "allreduce", "cut"),
)
"""The options that a plan chooses; together they are a layout."""


def _planned(config: Any, ranks: int) -> str:
    return next(filter(None, (given(config, name) for name in PLANNED)), "")


FEATURES = (
    Feature("a layout", _planned, covers="any option that sets the layout"),
    Feature(
        "plan",
        relies_on=(STEPS_TOGETHER,),
        conflicts={
            "a layout": "the plan chooses one, and trains with it",
            "reproducible": "it gives the same bits along dp alone, which needs no plan",
            "elastic": "it adapts a given layout to the ranks that exist",
            "dry_run": "a plan trains",
        },
    ),
    Feature("dry_run", remedy="use python -m nnmpi.plan"),
    Feature("ranks", requires={"dry_run": "a run has the ranks that mpirun starts"}),
)

ADDED = AddOnOptions(Options, FEATURES)

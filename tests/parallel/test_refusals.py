"""Features that cannot be combined: every pair is refused, and the page about them is complete."""

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.mpijob import ROOT
from helpers.options import another

from nnmpi import Config
from nnmpi.options.config import options
from nnmpi.options.features import Refusal, Requires
from nnmpi.parallel import strategies
from nnmpi.parallel.refusals import FEATURES, REFUSALS, REQUIREMENTS

ASKED: dict[str, dict[str, Any]] = {
    **{option.name: {option.name: another(option)} for option in options()},
    "16 bits": {"dtype": "float16"},
    "another dtype": {"dtype": "bfloat16"},
    "allreduce mpi": {"dtype": "float16", "allreduce": "mpi"},
    "a layout": {"zero": 1},
    "allreduce": {"allreduce": "ring"},
    "allreduce in memory": {"allreduce": "hierarchical"},
    "allreduce without halves": {"allreduce": "tree"},
    "layerwise": {"optimizer": "lamb"},
    "optimizer muon": {"optimizer": "muon"},
    "verify along tp": {"verify": True, "tp": 2},
    "layout length:cp": {"layout": "length:cp"},
    "averaging": {"sync": "local"},
    "dtype float16": {"dtype": "float16"},
    "nccl": {"allreduce": "nccl"},
    "one rank": {},
    "servers": {"servers": 1},
    "outer sgd": {"outer": "sgd"},
    "positions along tp": {"sequence_parallel": True, "tp": 2},
    "pipedream": {"schedule": "pipedream", "pp": 2},
    "recompute stage": {"recompute": "stage"},
    "zero 2 or 3": {"zero": 2},
}
"""Options that ask for each name of the table."""


ALONE = {"reduce_dtype": {"dtype": "float16"}, "outer_momentum": {"sync": "local"}}
"""What some options are given with, where they are given alone."""


def asked(*names: str) -> Config:
    """A config that asks for these features; of two values of one option, the latter."""
    return Config(**{key: value for name in names for key, value in ASKED[name].items()})


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.feature.name}-{row.beside.name}")
def test_what_cannot_be_combined_is_refused(row: Refusal) -> None:
    config, ranks = asked(row.feature.name, row.beside.name), 1 + (row.beside.name != "one rank")
    pairs = [
        (pair.reason, pair.remedy)
        for pair in REFUSALS
        if pair.feature.asked(config, ranks) and pair.beside.asked(config, ranks)
    ]
    assert (row.reason, row.remedy) in pairs
    reason, remedy = pairs[0]  # options of the row may also ask for another pair
    with refused(reason, remedy):
        strategies.check(config, ranks)
    alone = {**ASKED[row.feature.name], **ALONE.get(row.feature.name, {})}
    strategies.check(Config(**alone), 2)


@pytest.mark.parametrize("row", REQUIREMENTS, ids=lambda row: row.feature.name)
def test_what_needs_another_option_is_refused_without_it(row: Requires) -> None:
    name, flag = row.feature.name, row.other.replace("_", "-")
    with refused(name, f"without {row.other}", row.reason, f"add --{flag}"):
        strategies.check(asked(name), 2)


@pytest.mark.all_add_ons
def test_page_of_combinations_is_complete() -> None:
    """Its tables are those that follow from the features: copy them from the assertion."""
    page = (ROOT / "docs/combinations.md").read_text(encoding="utf-8").split("\n")
    assert [line for line in page if line.startswith("| ")] == [*tables()]


def tables() -> Iterator[str]:
    """The rows of the tables of docs/combinations.md."""
    yield "| it needs | options that need it | not given beside |"
    for needed in dict.fromkeys(p for f in FEATURES for p in f.relies_on):
        relying = ", ".join(f"`{f.name}`" for f in FEATURES if needed in f.relies_on)
        broken = "; ".join(
            f"`{f.name}`: {f.breaks[needed]}" for f in FEATURES if needed in f.breaks
        )
        yield f"| {needed.words} | {relying} | {broken} |"
    yield "| option | cannot be combined with | because |"
    for feature in FEATURES:
        for other, reason in feature.conflicts.items():
            yield f"| `{feature.name}` | `{other}` | {reason} |"
    yield "| option | needs | because |"
    for feature, other, reason in REQUIREMENTS:
        yield f"| `{feature.name}` | `{other}` | {reason} |"


def test_what_belongs_together_is_accepted() -> None:
    strategies.check(Config(pp=2, virtual_stages=3, schedule="interleaved", cut="1,2,3,4,5"), 2)
    strategies.check(Config(recompute=True, schedule="gpipe"), 2)

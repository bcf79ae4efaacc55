"""The table of options that cannot be combined: every row is refused, and stands in the docs."""

from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.options import another

from nnmpi import Config
from nnmpi.options.config import options
from nnmpi.parallel import strategies
from nnmpi.parallel.refusals import NEEDS, REFUSALS, Refusal, Requires

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
    "outer sgd": {"outer": "sgd"},
    "positions along tp": {"sequence_parallel": True, "tp": 2},
    "pipedream": {"schedule": "pipedream", "pp": 2},
    "recompute stage": {"recompute": "stage"},
    "zero 2 or 3": {"zero": 2},
}
"""Options that ask for each name of the table."""


ALONE = {"reduce_dtype": {"dtype": "float16"}, "outer_momentum": {"sync": "local"}}
"""What some options are given with, where they are given alone."""


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.option}-{row.beside}")
def test_what_cannot_be_combined_is_refused(row: Refusal) -> None:
    config = Config(**ASKED[row.option], **ASKED[row.beside])
    with refused(*row.option.split(" or")[:1], row.reason, row.remedy):
        strategies.check(config, 1 if row.beside == "one rank" else 2)
    strategies.check(Config(**ASKED[row.option], **ALONE.get(row.option, {})), 2)


@pytest.mark.parametrize("row", NEEDS, ids=lambda row: row.option)
def test_what_needs_another_option_is_refused_without_it(row: Requires) -> None:
    with refused(
        row.option, f"without {row.other}", row.reason, f"add --{row.other.replace('_', '-')}"
    ):
        strategies.check(Config(**ASKED[row.option]), 2)


def test_what_belongs_together_is_accepted() -> None:
    strategies.check(Config(pp=2, virtual_stages=3, schedule="interleaved", cut="1,2,3,4,5"), 2)
    strategies.check(Config(recompute=True, schedule="gpipe"), 2)

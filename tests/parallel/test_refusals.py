"""The table of options that cannot be combined: every row is refused, and stands in the docs."""

from typing import Any

import pytest
from datafiles import refused
from mpijob import ROOT

from nnmpi import Config
from nnmpi.parallel import plan
from nnmpi.parallel.refusals import NEEDS, REFUSALS, Need, Refusal

ASKED: dict[str, dict[str, Any]] = {
    "allreduce": {"allreduce": "ring"},
    "bucket_mb": {"bucket_mb": 2.0},
    "device": {"device": "cuda"},
    "micro_batches": {"micro_batches": 2},
    "overlap": {"overlap": False},
    "progress": {"progress": "thread"},
    "ranks": {},
    "reproducible": {"reproducible": True},
    "servers": {"servers": 1},
    "slices": {"slices": 4},
    "staleness": {"staleness": 2},
    "verify": {"verify": True},
}
"""Options that ask for each name of the table."""

PAGE = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.option}-{row.beside}")
def test_what_cannot_be_combined_is_refused(row: Refusal) -> None:
    config = Config(**ASKED[row.option], **ASKED[row.beside])
    with refused(row.option, row.reason, row.remedy):
        plan.check(config, 2)
    plan.check(Config(**ASKED[row.option]), 1 if row.option == "device" else 2)


@pytest.mark.parametrize("row", NEEDS, ids=lambda row: row.option)
def test_what_needs_another_option_is_refused_without_it(row: Need) -> None:
    with refused(row.option, f"without {row.other}", row.reason, f"add --{row.other}"):
        plan.check(Config(**ASKED[row.option]), 2)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.option}-{row.beside}")
def test_the_docs_show_every_refusal(row: Refusal) -> None:
    assert f"| `{row.option}` | `{row.beside}` | {row.reason} |" in PAGE


@pytest.mark.parametrize("row", NEEDS, ids=lambda row: row.option)
def test_the_docs_show_every_need(row: Need) -> None:
    assert f"| `{row.option}` | without `{row.other}` | {row.reason} |" in PAGE

"""The table of options that cannot be combined: every row is refused, and stands in the docs."""

from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.mpijob import ROOT

from nnmpi import Config
from nnmpi.mesh import AXES
from nnmpi.parallel import plan
from nnmpi.parallel.refusals import NEEDS, REFUSALS, Need, Refusal

ASKED: dict[str, dict[str, Any]] = {
    "16 bits": {"dtype": "float16"},
    "allreduce": {"allreduce": "ring"},
    "allreduce in memory": {"allreduce": "hierarchical"},
    "allreduce without halves": {"allreduce": "tree"},
    "append": {"append": True},
    "bucket_mb": {"bucket_mb": 2.0},
    "cut": {"cut": "3"},
    "sequence_parallel": {"sequence_parallel": True},
    "clip_norm": {"clip_norm": 1.0},
    "device": {"device": "cuda"},
    "jitter": {"jitter": "0.5:2"},
    "load_partial": {"load_partial": True},
    "micro_batches": {"micro_batches": 2},
    "overlap": {"overlap": False},
    "pipedream": {"schedule": "pipedream", "pp": 2},
    "progress": {"progress": "thread"},
    "nccl": {"allreduce": "nccl"},
    "one rank": {},
    "prompt": {"prompt": "In"},
    "ranks": {"ranks": 8},
    "recompute": {"recompute": True},
    "reproducible": {"reproducible": True},
    "sample_every": {"sample_every": 5},
    "schedule": {"schedule": "gpipe"},
    "servers": {"servers": 1},
    "slow_rank": {"slow_rank": "0:2"},
    "slices": {"slices": 4},
    "staleness": {"staleness": 2},
    "tf32": {"tf32": True},
    **{axis.name: {axis.name: 2} for axis in AXES},
    "verify": {"verify": True},
    "vertical_sync": {"vertical_sync": True},
    "virtual_stages": {"virtual_stages": 3},
    "weight_decay_of": {"weight_decay_of": "matrices"},
    "zero": {"zero": 1},
    "zero 2 or 3": {"zero": 2},
}
"""Options that ask for each name of the table."""

PAGE = (ROOT / "docs" / "parallel.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.option}-{row.beside}")
def test_what_cannot_be_combined_is_refused(row: Refusal) -> None:
    config = Config(**ASKED[row.option], **ASKED[row.beside])
    with refused(*row.option.split(" or")[:1], row.reason, row.remedy):
        plan.check(config, 1 if row.beside == "one rank" else 2)
    plan.check(Config(**ASKED[row.option]), 2)


@pytest.mark.parametrize("row", NEEDS, ids=lambda row: row.option)
def test_what_needs_another_option_is_refused_without_it(row: Need) -> None:
    with refused(
        row.option, f"without {row.other}", row.reason, f"add --{row.other.replace('_', '-')}"
    ):
        plan.check(Config(**ASKED[row.option]), 2)


@pytest.mark.parametrize("row", REFUSALS, ids=lambda row: f"{row.option}-{row.beside}")
def test_the_docs_show_every_refusal(row: Refusal) -> None:
    assert f"| `{row.option}` | `{row.beside}` | {row.reason} |" in PAGE


@pytest.mark.parametrize("row", NEEDS, ids=lambda row: row.option)
def test_the_docs_show_every_need(row: Need) -> None:
    assert f"| `{row.option}` | without `{row.other}` | {row.reason} |" in PAGE


def test_the_messages_say_what_was_asked_for() -> None:
    for config, words in (
        (Config(pp=2, servers=1), "pp 2 with 1 server (sync bsp): every rank"),
        (Config(pp=2, reproducible=True), "reproducible with pp 2: one rank computes"),
        (Config(schedule="zb-h1", sync="asp"), "schedule zb-h1 with 1 server (sync asp): "),
        (Config(cut="3,7"), "cut 3,7 without pp: .*; add --pp, or leave cut out"),
        (Config(pp=2, virtual_stages=3), "virtual_stages 3 without schedule interleaved: "),
    ):
        with pytest.raises(ValueError, match=r"\A" + words.replace("(", r"\(").replace(")", r"\)")):
            plan.check(config, 3)


def test_what_belongs_together_is_accepted() -> None:
    plan.check(Config(pp=2, virtual_stages=3, schedule="interleaved", cut="1,2,3,4,5"), 2)
    plan.check(Config(recompute=True, schedule="gpipe"), 2)

"""The layouts of ranks that are left: valid, the nearest ones, and as many ranks as can work."""

import tomllib
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused

from nnmpi import Config
from nnmpi.addons.recovery.parallel.fitted_layout import (
    AXES_BESIDE_DP,
    FittedLayout,
    fit_layout,
    pointless,
)
from nnmpi.addons.recovery.run.layouts import fitted
from nnmpi.io.checkpoints.snapshot import ARRANGEMENT_GROUPS
from nnmpi.options.config import options
from nnmpi.parallel import strategies
from nnmpi.parallel.layout import mesh_of, server_count
from nnmpi.run.setup.cutting import UncutModel, uncut_of

MOST = 24  # ranks
OF_THE_RUN = [o.name for o in options() if o.metadata["group"] not in ARRANGEMENT_GROUPS]

TABLE = tomllib.loads(Path(__file__).with_name("fitted_layouts.toml").read_text(encoding="utf-8"))
LAYOUTS: dict[str, dict[str, Any]] = TABLE["layouts"]
NEAREST: dict[str, dict[str, Any]] = TABLE["nearest"]


def fewer(name: str, ranks: int) -> FittedLayout:
    return fit_layout(Config(**LAYOUTS[name]), ranks, strategies.check)


@pytest.mark.parametrize("name", LAYOUTS)
def test_any_number_of_ranks_has_a_layout_of_which_more_ranks_never_leave_fewer_at_work(
    name: str,
) -> None:
    asked, before = Config(**LAYOUTS[name]), 0
    for ranks in range(1, MOST + 1):
        config, working, spare, why = fewer(name, ranks)
        strategies.check(config, working)
        assert all(getattr(config, name) == getattr(asked, name) for name in OF_THE_RUN)
        assert before <= working <= ranks == working + spare
        assert all(getattr(config, axis) <= getattr(asked, axis) for axis in AXES_BESIDE_DP)
        assert mesh_of(config, working).size + server_count(config) == working
        assert why.startswith(("dp ", "cp ", "pp ", "tp ", "one rank"))
        assert why.isprintable()
        assert fit_layout(config, working, strategies.check)[:3] == (config, working, 0)
        before = working


@pytest.mark.parametrize("name", LAYOUTS)
def test_whole_copies_of_the_model_are_left_out_before_one_is_cut_otherwise(name: str) -> None:
    asked = Config(**LAYOUTS[name])
    one = prod(getattr(asked, axis) for axis in AXES_BESIDE_DP)
    for ranks in range(one + 3, MOST + 1):  # beside servers
        config = fewer(name, ranks).config
        assert all(
            getattr(config, axis) == getattr(asked, axis) for axis in (*AXES_BESIDE_DP, "cut")
        )
        assert server_count(config) == server_count(asked)
    for ranks in range(1, one):
        config = fewer(name, ranks).config
        assert [getattr(config, axis) for axis in AXES_BESIDE_DP] != [
            getattr(asked, axis) for axis in AXES_BESIDE_DP
        ]


@pytest.mark.parametrize("case", [case for case, row in NEAREST.items() if "working" in row])
def test_the_nearest_layout_is_taken(case: str) -> None:
    row = NEAREST[case]
    found, options = fewer(row["layout"], row["ranks"]), LAYOUTS[row["layout"]] | row["changes"]
    wanted = Config(**options | dict.fromkeys(row.get("without", ())))
    assert (found.config, found.ranks) == (wanted, row["working"])


@pytest.mark.parametrize("case", [case for case, row in NEAREST.items() if "why" in row])
def test_a_line_says_which_layout_and_why(case: str) -> None:
    row = NEAREST[case]
    assert fewer(row["layout"], row["ranks"]).why == row["why"]


def test_the_model_is_looked_at_only_where_an_axis_changes() -> None:
    def unasked() -> UncutModel:
        raise AssertionError

    assert fitted(Config(dp=3, tp=2), 5, unasked).ranks == 4
    with pytest.raises(AssertionError):
        fitted(Config(dp=3, tp=2), 1, unasked)


@cache
def gpt() -> UncutModel:
    """A model of four heads on windows of 16 tokens."""
    return uncut_of(Config(model="gpt:4x4x32", data="text", context=16))[1]


def test_a_layout_that_the_model_does_not_allow_is_passed_over_and_named() -> None:
    """Seven ranks along tp are more than there are heads; three have two, one and one."""
    options = {"model": "gpt:4x4x32", "data": "text", "context": 16, "tp": 8}
    found = fitted(Config(**options, sequence_parallel=True), 7, gpt)
    assert (found.config.tp, found.ranks, found.spare) == (4, 4, 3)
    assert "; tp 7 is not possible: model gpt:4x4x32 with tp 7: sequence parallelism" in found.why
    assert fitted(Config(**options | {"tp": 4}), 3, gpt).config.tp == 3


def test_no_layout_at_all_is_refused_with_the_last_reason() -> None:
    def never(config: Config, ranks: int) -> None:
        raise ValueError("there is no room")

    with refused("no layout fits 2 ranks: one rank is not possible: there is no room"):
        fit_layout(Config(pp=3), 2, never)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pp": 2, "reproducible": True}, "reproducible with pp 2: it needs the whole model"),
        ({"slow_rank": "first:3"}, "slow_rank 'first:3'"),
        ({"cut": "3"}, "cut 3 without pp"),
    ],
)
def test_options_that_never_go_together_are_refused_as_without_it(
    options: dict[str, Any], words: str
) -> None:
    with refused(words):
        fit_layout(Config(**options), 4, strategies.check)


def test_a_layout_means_nothing_where_its_ranks_are_lost() -> None:
    for text in ("channels:tp", "0=row"):
        assert pointless(Config(layout=text), 4) == ["layout"]
    assert not pointless(Config(layout="batch:dp"), 4)
    assert not pointless(Config(layout="0=row", tp=2), 4)


def test_a_layout_along_cp_means_nothing_without_it() -> None:
    assert not pointless(Config(layout="length:cp,0=row", tp=2, cp=2), 4)
    assert pointless(Config(layout="length:cp"), 4) == ["layout"]

"""Samples of the exhaustive lists, which scripts/explore --exhaustive runs whole; and what lets one
order of operations stand for all."""

import re
from collections.abc import Sequence

import pytest
from helpers.mpijob import ROOT

from nnmpi.comm.transport.hub import Caller, Hub, Posted
from simulation.case import Case
from simulation.exhaustive import all_deaths, ways
from simulation.layouts import DRAWN, EXHAUSTED
from simulation.run import run
from simulation.verdict import undisturbed, verdict

BLOCKS, CASES = 4, 12  # of cases of each layout, from everywhere in its list
ORDERS = 6


@pytest.mark.parametrize("block", range(BLOCKS))
@pytest.mark.parametrize("name", EXHAUSTED)
@pytest.mark.one_in(4)
def test_one_death_at_any_operation(name: str, block: int) -> None:
    cases = all_deaths(name)
    for case in cases[block :: len(cases) // CASES]:
        result = verdict(case)
        assert not result.is_bad, f"{case}: {result.text}"


def test_the_page_counts_layouts_deaths_and_ways() -> None:
    file = ROOT / "tests" / "simulation" / "faults.md"
    page = " ".join(file.read_text(encoding="utf-8").split())
    operations = sum(sum(undisturbed(name).counts) for name in EXHAUSTED)
    cases = sum(len(all_deaths(name)) for name in EXHAUSTED)
    assert f"over {len(DRAWN)} layouts" in page
    assert f"each of their {operations:,} operations" in page
    assert f"in eight ways or nine: {cases:,} cases" in page
    # the rank that dies is not the one that is late alone
    assert {len(ways(name)) - 1 for name in EXHAUSTED} == {8, 9}


def done_in_the_end(hub: Hub, caller: Caller, requests: Sequence[Posted]) -> bool:
    """A `test` that cannot depend on the order: it waits."""
    hub.wait(caller, requests)
    return True


def operations(case: Case) -> list[list[str]]:
    """What each rank does, without the moments at which it has to wait; some messages tell of
    measured times as text, which has any length."""
    ended = run(case)
    assert ended.error is None
    turns = [turn for turn in ended.scheduler.trace if turn.what != "has waited"]
    hashes = [rank.last["parameters_sha256"] for rank in ended.left if rank is not None]
    return [
        [re.sub(r"\d+ bytes", "bytes", turn.what) for turn in turns if turn.rank == rank] + [sha]
        for rank, sha in enumerate(hashes)
    ]


@pytest.mark.parametrize("name", ["short ring", "short zero 3"])
def test_all_orders_are_one_if_no_test_depends_on_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hub, "test", done_in_the_end)
    first, *others = [operations(Case(name, seed)) for seed in range(ORDERS)]
    for other in others:
        assert other == first

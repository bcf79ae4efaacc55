"""Plans of a GPT on windows of text: the search, and the parts of a step."""

import pytest
from helpers.planning import SLOW_LINKS, parts_add_up, planning

from nnmpi import Config
from nnmpi.planning.bound import LowerBounds
from nnmpi.planning.candidate import Candidate
from nnmpi.planning.search import SearchResult

GPT = Config(model="gpt:2x2x16", data="text", context=16, batch_size=8)
LAYOUTS = [
    Candidate(dp=2, tp=2, zero=3),
    Candidate(cp=2, pp=2, zero=1),
    Candidate(pp=2, tp=2, micro_batches=4, schedule="zb-h1"),
]


def test_pruned_is_exhaustive_and_bounds_are_below() -> None:
    there = planning(GPT, 2, 2, SLOW_LINKS)
    pruned, exhaustive = (there.searcher(prunes=on).search() for on in (True, False))
    assert layouts_of(pruned) == layouts_of(exhaustive)
    bounds = LowerBounds(there.arranger, there.costs)
    for one in exhaustive.looked:
        assert bounds.with_messages(one.layout) <= one.time.seconds, one
        assert bounds.nbytes(one.layout) <= one.nbytes, one


def layouts_of(found: SearchResult) -> list[tuple[object, ...]]:
    return [(one.layout, one.time, one.nbytes) for one in found.best]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_of_a_step_add_up(layout: Candidate) -> None:
    there = planning(GPT, 4, 2, SLOW_LINKS)
    parts_add_up(there.arranger.arranged(layout), there.costs)

"""Plans of a GPT on windows of text."""

from helpers.planning import SLOW_LINKS, planning

from nnmpi import Config
from nnmpi.addons.planning.bound import LowerBounds
from nnmpi.addons.planning.search import SearchResult

GPT = Config(model="gpt:2x2x16", data="text", context=16, batch_size=8)


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

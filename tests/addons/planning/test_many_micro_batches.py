"""Steps of many micro-batches: which are tried, and that a few of them tell what all exchange."""

from dataclasses import replace
from itertools import count
from math import inf

import pytest
from helpers.decoders import decoder
from helpers.planning import SLOW_LINKS, planning

from nnmpi.addons.planning.candidate import Candidate, counts_of_micro_batches
from nnmpi.addons.planning.paper import rank as of_rank
from nnmpi.addons.planning.search import Searcher

DECODER = decoder("4x2x16", 16, batch_size=96)


def test_all_equal_micro_batches_are_tried() -> None:
    assert counts_of_micro_batches(1536, 8) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 192]
    assert max(counts_of_micro_batches(1536, 1)) == 1536
    assert counts_of_micro_batches(7, 2) == [1, 2]
    assert counts_of_micro_batches(1009, 1) == [1, 2, 4, 8, 16, 32, 64, 1009]
    assert counts_of_micro_batches(1009, 2) == [1, 2, 4, 8, 16, 32, 64]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "layout",
    [
        Candidate(dp=4),
        Candidate(dp=2, pp=2, recompute="stage"),
        Candidate(dp=2, pp=2, schedule="interleaved"),
        Candidate(dp=2, pp=2, schedule="zb-h1", recompute="block"),
        Candidate(dp=2, tp=2, sequence_parallel=True),
    ],
)
def test_a_few_micro_batches_tell_what_many_exchange(
    layout: Candidate, zero: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # with small buckets there are many sums, in the order of the last passes
    arranger = planning(replace(DECODER, bucket_mb=0.002), 4, 2, SLOW_LINKS).arranger
    for m in (4, 12, 24, 48):
        a = arranger.arranged(layout._replace(zero=zero, micro_batches=m))
        for rank in range(4):
            few = of_rank.step.__wrapped__(a, rank, 96)
            with monkeypatch.context() as patch:
                patch.setattr(of_rank, "few_micro_batches", lambda a, sizes: (99, 99))
                assert of_rank.step.__wrapped__(a, rank, 96) == few


@pytest.mark.long
def test_a_search_whose_time_is_up_says_how_many_layouts_it_has_not_priced() -> None:
    models = planning(DECODER, 4, 2, SLOW_LINKS)
    everything = models.searcher().search()
    assert not everything.counts.unpriced
    ticks = count().__next__
    result = Searcher(models.arranger, models.costs, inf, within=200, clock=ticks).search()
    counts = result.counts
    assert result.best
    assert 0 < counts.looked < everything.counts.looked
    assert counts.unpriced > 0
    # the fastest layout is found or may be among those without a price
    assert result.best[0].time.seconds >= everything.best[0].time.seconds
    assert [*result.pure] == ["dp"]


@pytest.mark.parametrize("memory", [1.0, 1e6, inf])
def test_a_search_without_time_looks_at_the_layout_that_may_take_least(memory: float) -> None:
    models = planning(DECODER, 4, 2, SLOW_LINKS)
    ticks = count().__next__
    found = Searcher(models.arranger, models.costs, memory, within=0, clock=ticks).search()
    assert found.counts.unpriced
    assert len(found.best) == (found.least is None) == (memory > 1)

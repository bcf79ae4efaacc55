"""Ranks whose steps are taken from those of others."""

from functools import cache

import pytest
from helpers.decoders import decoder
from helpers.planning import Planning, planning

from nnmpi.planning.candidate import Candidate
from nnmpi.planning.paper.rank import step, walked
from nnmpi.planning.paper.twins import twin

DECODER = decoder("8x4x32", 32, batch_size=64)
LAYOUTS = {
    "pp": Candidate(dp=2, pp=4, micro_batches=4),
    "pp, interleaved": Candidate(dp=4, pp=2, micro_batches=4, schedule="interleaved"),
    "pp, zb-h1": Candidate(dp=2, pp=4, micro_batches=8, schedule="zb-h1"),
    "pp, zb-v": Candidate(dp=2, pp=4, micro_batches=8, schedule="zb-v"),
    "pp, zero 3": Candidate(dp=2, pp=4, micro_batches=4, zero=3),
    "tp": Candidate(dp=2, tp=4),
    "tp, in positions": Candidate(dp=2, tp=4, sequence_parallel=True),
    "tp, pp, zero 1": Candidate(tp=2, pp=2, dp=2, micro_batches=2, zero=1),
    "tp, cp": Candidate(tp=4, cp=2),
}


@cache
def on_nodes(nodes: int) -> Planning:
    return planning(DECODER, 8, nodes)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_rank_does_what_its_twin_says(layout: Candidate, nodes: int) -> None:
    a = on_nodes(nodes).arranger.arranged(layout)
    for rank in range(8):
        assert step(a, rank, 64) == walked(a, rank, 64)


def test_middle_stages_and_later_places_along_tp_are_twins() -> None:
    """The first place along tp has the tokens and the classes of samples on paper."""
    for layout, alike in (("pp", [0, 1, 1, 3]), ("tp", [0, 1, 1, 1])):
        a = on_nodes(1).arranger.arranged(LAYOUTS[layout])
        ranks = a.mesh.group(0, "pp", "tp")
        assert [ranks.index(twin(a, r, 64)) for r in ranks] == alike

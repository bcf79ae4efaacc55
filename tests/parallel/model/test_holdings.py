"""What ranks have and need on paper is what built ranks have and need, and what is moved is that."""

from typing import Any

import pytest
from helpers.training import laws_snapshot
from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import LAYOUTS, trainer_of

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.model import snapshot as snapshots
from nnmpi.parallel.model.holdings import held, owned

ADAM = OPTIMIZERS[1]


@pytest.mark.parametrize("row", LAYOUTS, ids=lambda row: str(row.options))
def test_what_ranks_have_is_what_is_said(row: laws_snapshot.Row) -> None:
    def rank(comm: Comm) -> Any:
        trainer = trainer_of(comm, **ADAM, **row.options)
        saved, a = trainer.snapshot().owned, trainer.arrangement
        own = {(one.place.path, comm.rank, one.lo, one.hi, one.place.part) for one in saved}
        here = {
            (place.path, comm.rank, 0, place.size, place.part)
            for place, _, is_held in snapshots._tensors(trainer.session.part)
            if is_held
        }
        trainer.close()
        return own, here, a

    of_all = threads.run(row.ranks[-1], rank)
    a = of_all[0][2]

    def named(ranges: Any) -> set[Any]:
        paths = [v.path for v in a.graph.variables]
        return {(paths[one.i], one.rank, one.lo, one.hi, one.part) for one in ranges}

    assert named(owned(a)) == set().union(*(own for own, *_ in of_all))
    assert named(held(a)) == set().union(*(here for _, here, _ in of_all))

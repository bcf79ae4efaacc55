"""What ranks have, need and move on paper is what built ranks have, need and move."""

from typing import Any

import pytest
from helpers.training import laws_snapshot
from helpers.training.laws_snapshot import LAYOUTS, RING, trainer_of

from nnmpi import Config
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.model import snapshot as snapshots
from nnmpi.parallel.model.moves import MovePlan
from nnmpi.parallel.model.moving import carry_out
from nnmpi.parallel.model.nearest import axes_of, held, owned, rearranged

ADAM = {"optimizer": "adam", "lr": 1e-3}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("row", LAYOUTS, ids=lambda row: str(row.options))
def test_what_ranks_have_is_what_is_said(row: laws_snapshot.Row) -> None:
    def rank(comm: Comm) -> Any:
        trainer = trainer_of(comm, **ADAM, **row.options)
        saved, a = trainer.snapshot().owned, trainer.arrangement
        own = {(comm.rank, one.range) for one in saved}
        here = {
            (comm.rank, place.range())
            for place, _, is_held in snapshots._tensors(trainer.session.part)
            if is_held
        }
        trainer.close()
        return own, here, a

    of_all = threads.run(row.ranks[-1], rank)
    a = of_all[0][2]
    assert {*owned(a)} == set().union(*(own for own, *_ in of_all))
    assert {*held(a)} == set().union(*(here for _, here, _ in of_all))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({**RING, "zero": 1, "bucket_mb": 0.001}, {**RING, "dp": 2, "tp": 2}),
        ({**RING, "dp": 2, "tp": 2, "zero": 2}, {"pp": 2, "cut": "5", "tp": 2}),
        ({"pp": 2, "cut": "5", **RING}, {"allreduce": "shared"}),
        ({"servers": 1}, {**RING, "zero": 3}),
    ],
    ids=str,
)
def test_what_ranks_send_when_they_are_rearranged_is_what_is_said(
    before: dict[str, Any], after: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, **ADAM, **before)
        old, axes = trainer.arrangement, axes_of(trainer.model)
        plain = {name: getattr(Config(), name) for name in before}
        trainer.rearrange(**{**plain, **after})
        said = [plan.moved(comm.size) for plan in rearranged(old, trainer.arrangement, axes)]
        assert sent[comm.rank] == [one[comm.rank].sent for one in said]
        assert sum(one.sent.bytes for plan in said for one in plan) > 0
        trainer.close()

    def counted(plan: MovePlan, comm: Comm, *rest: Any) -> None:
        comm.ledger.reset()
        carry_out(plan, comm, *rest)
        found = Traffic(sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages))
        sent.setdefault(comm.rank, []).append(found)

    sent: dict[int, list[Traffic]] = {}
    monkeypatch.setattr(snapshots, "carry_out", counted)
    threads.run(4, rank)

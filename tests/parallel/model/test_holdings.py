"""What ranks have, need and move on paper is what built ranks have, need and move."""

from typing import Any

import pytest
from helpers.training import laws_snapshot
from helpers.training.laws_snapshot import LAYOUTS, RING, trainer_of

from nnmpi import Config
from nnmpi.addons.planning.run.layout_events import rearranged
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.state import which_held
from nnmpi.optim.replica_state import unnumbered
from nnmpi.parallel.arrangement.exchanges import Traffic
from nnmpi.parallel.arrangement.state_on_paper import held_on_paper, state_on_paper
from nnmpi.parallel.model.mover import Mover

ADAM = {"optimizer": "adam", "lr": 1e-3}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("row", LAYOUTS, ids=lambda row: str(row.options))
def test_what_ranks_have_is_what_is_said(row: laws_snapshot.Row) -> None:
    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, **ADAM, **row.options)
        arrays, a = trainer.snapshot().arrays, trainer.arrangement
        axes = {p.place.path: p.memory_axes for p in trainer.model.parameters()}
        said = {*state_on_paper(a, comm.rank, axes)}
        assert {x.on_paper() for x in arrays if unnumbered(x.name)[1] is None} == said
        part = trainer.session.part
        tensors = [*part.model.tensors()]
        held = zip(tensors, which_held(tensors, part.held), strict=True)
        here = {place for (place, _), is_held in held if is_held}
        assert {x.place for x in held_on_paper(a, comm.rank, axes)} == here
        trainer.close()

    threads.run(row.ranks[-1], rank)


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
        old = trainer.arrangement
        plain = {name: getattr(Config(), name) for name in before}
        trainer.rearrange(**{**plain, **after})
        said = [
            plan.moved(comm.size) for plan in rearranged(old, trainer.arrangement, trainer.model)
        ]
        assert sent[comm.rank] == [one[comm.rank].sent for one in said]
        assert sum(one.sent.bytes for plan in said for one in plan) > 0
        trainer.close()

    def counted(mover: Mover, source: Any, target: Any, comm: Comm) -> None:
        comm.ledger.reset()
        carry_out(mover, source, target, comm)
        found = Traffic(sum(comm.ledger.sent_bytes), sum(comm.ledger.sent_messages))
        sent.setdefault(comm.rank, []).append(found)

    sent: dict[int, list[Traffic]] = {}
    carry_out = Mover.carry_out
    monkeypatch.setattr(Mover, "carry_out", counted)
    threads.run(4, rank)

"""Snapshots that do not fit, layouts that cannot be opened, and runs that are over."""

import gc
import re
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
from helpers.comm.counted import Counted
from helpers.datafiles import refused
from helpers.training.laws_resume import OPTIMIZERS
from helpers.training.laws_snapshot import COMMON, RING, STEPS, run, same, taken, trainer_of

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, OtherRankError, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.metrics import Sums
from nnmpi.run.session import Session

ADAM = OPTIMIZERS[1]


def fails(comm: Comm, words: str, act: Callable[[], object]) -> None:
    with pytest.raises((ValueError, OtherRankError), match=re.escape(words)):
        act()


def test_what_cannot_be_is_refused_and_the_run_goes_on() -> None:
    def rank(comm: Comm) -> None:
        def act(trainer: Trainer) -> None:
            fails(comm, "'lr' cannot be changed in a run", lambda: trainer.rearrange(lr=1.0))
            fails(comm, "'no' cannot be changed in a run", lambda: trainer.rearrange(no=1))
            fails(comm, "dp 7 does not fit", lambda: trainer.rearrange(dp=7))
            fails(comm, "zero 5 is not one of", lambda: trainer.rearrange(zero=5))
            different = lambda: trainer.rearrange(overlap=comm.rank == 0)  # noqa: E731
            fails(comm, "rank 1 differs from rank 0 in overlap", different)
            other = trainer.snapshot()._replace(config=Config(**{**COMMON, "seed": 3}))
            fails(comm, "is of a run with", lambda: trainer.restore(other))

        same(run(comm, ADAM, act), run(comm, ADAM))

    threads.run(2, rank)


def test_a_layout_that_cannot_be_opened_leaves_no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    made, init = WeakSet[Session](), Session.__init__

    def noted(session: Session, *args: Any) -> None:
        made.add(session)
        init(session, *args)

    monkeypatch.setattr(Session, "__init__", noted)

    def rank(comm: Comm) -> None:
        with trainer_of(comm, **ADAM) as trainer:
            fails(comm, "there is no layer 99", lambda: trainer.rearrange(pp=2, cut="99"))
            comm.barrier()
            assert len(made) == comm.size
            comm.barrier()

    gc.disable()
    try:
        threads.run(2, rank)
    finally:
        gc.enable()


def test_snapshots_that_do_not_fit_are_refused_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)

    def rank(comm: Comm) -> None:
        options = {**ADAM, **RING, "zero": 1}
        trainer = trainer_of(comm, **options)
        start = trainer.snapshot()
        lacks = start._replace(arrays=() if comm.rank else start.arrays)
        fails(comm, "no rank has element", lambda: trainer.restore(lacks))
        later = start._replace(state=start.state._replace(step=comm.rank))
        fails(comm, "differs from rank 0 in the snapshot", lambda: trainer.restore(later))
        some = start._replace(measured={"allreduce": "ring"} if comm.rank else {})
        fails(comm, "differs from rank 0 in the snapshot", lambda: trainer.restore(some))
        trainer.restore(start)
        assert trainer.fit(NullReport())["event"] == "done"
        trainer.close()

    threads.run(2, rank)
    assert not counted.left


def test_a_run_that_is_over() -> None:
    def rank(comm: Comm) -> None:
        trainer = trainer_of(comm, **ADAM)
        trainer.fit(NullReport())
        trainer.close()
        with refused("this Trainer is closed, by close() or because its run failed: call snapshot"):
            trainer.snapshot()
        ended = taken(comm_self(), ADAM, STEPS)._replace(epoch=Sums())
        trainer.restore(ended)
        with refused(f"the snapshot is of step {STEPS}", f"ends after {STEPS} steps"):
            trainer.fit(NullReport())
        trainer.close()

    threads.run(2, rank)

"""A rank is lost, and another one when those that are left have just opened the next session."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from threading import get_ident
from typing import Any, cast

import pytest
from helpers.training import recovered
from helpers.training.pipelined import digits
from helpers.training.recovered import COMMON, RING, Left, trained

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.metrics import Sums
from nnmpi.optim.loss_scale import LossScale, Scaler
from nnmpi.parallel import strategy
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.update import Outcome
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.run.recovery.holdings import Holding
from nnmpi.run.recovery.standing import RunStage, Standing, agreed
from nnmpi.run.report import NullReport
from nnmpi.run.report.pace import NO_TIME
from nnmpi.run.run_state import Counters, VersionFacts
from nnmpi.run.session import Session
from nnmpi.run.snapshot import Snapshot
from nnmpi.run.training import Training

TORN = 2  # the number of the step in which the first one is lost


class TwoLosses:
    """One rank of the job is lost in a step that all others have updated, and one when all have a
    session without it."""

    def __init__(self, patch: pytest.MonkeyPatch, first: int, second: int | None) -> None:
        self._comms: dict[int, Comm] = {}  # of each thread
        self._first, self._steps = first, Counter[int]()
        opened = Training._open

        def open_and_die(training: Training, config: Config, comm: Comm, snapshot: Any) -> None:
            opened(training, config, comm, snapshot)
            if snapshot is not None and second in comm.members:
                comm.barrier()
                self._die(comm, second)

        patch.setattr(Training, "_open", open_and_die)

    def begin(self, comm: Comm) -> None:
        """On each rank, before it makes a Trainer."""
        self._comms[get_ident()] = comm

    def lose_first(self) -> None:
        """On each rank, in each step."""
        thread = get_ident()
        self._steps[thread] += 1
        if self._steps[thread] == TORN + 1:
            self._die(self._comms[thread], self._first)

    def _die(self, comm: Comm, rank: int | None) -> None:
        if comm.members[comm.rank] == rank:
            threads.kill(comm)
        comm.barrier()


def in_settle(patch: pytest.MonkeyPatch, losses: TwoLosses) -> None:
    settle = LocalStore.settle

    def dies(store: LocalStore) -> None:
        settle(store)
        losses.lose_first()

    patch.setattr(LocalStore, "settle", dies)


def after_the_scale(patch: pytest.MonkeyPatch, losses: TwoLosses) -> None:
    rescaled = strategy.rescaled

    def dies(scaler: Scaler, apply: Callable[[int], Outcome], step: int) -> Outcome:
        outcome = rescaled(scaler, apply, step)
        losses.lose_first()
        return outcome

    patch.setattr(strategy, "rescaled", dies)


@pytest.mark.parametrize("second", [None, 1])
@pytest.mark.parametrize("torn", [in_settle, after_the_scale])
def test_the_loss_scale_changes_once_in_a_step_that_was_finished(
    torn: Callable[[pytest.MonkeyPatch, TwoLosses], None],
    second: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    losses = TwoLosses(monkeypatch, 3, second)
    torn(monkeypatch, losses)

    def fit(comm: Comm) -> LossScale:
        losses.begin(comm)
        config = Config(**{**COMMON, **RING, "dtype": "float16"})
        trainer = Trainer(config, None, digits(), comm)
        trainer.fit(NullReport())
        found: LossScale = trainer.snapshot().loss_scale
        return found

    left = [one for one in threads.run(4, fit, fault_tolerant=True) if one]
    assert left == [LossScale(2.0**16, 6, True)] * (3 if second is None else 2)


def test_a_rank_that_was_spare_knows_the_step_that_the_others_have_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone has the columns of the two that are lost."""
    wanted = recovered.whole("tensor parallel")[0]
    losses = TwoLosses(monkeypatch, 3, 1)
    in_settle(monkeypatch, losses)

    def fit(comm: Comm) -> Left:
        losses.begin(comm)
        options = {**COMMON, **RING, "dp": 2, "tp": 2, "elastic": True}
        return trained(comm, {**options, "checkpoint_dir": str(tmp_path)})

    recovered.check(threads.run(5, fit, fault_tolerant=True), wanted)


def test_a_layout_without_copies_begins_again_after_two_losses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither one has made a step, so nothing is lost with a rank."""
    wake = Session.wake

    def dies(session: Session) -> None:
        comm = session.comm
        if comm.size > 1 and not session.run.state.step:
            if comm.rank == comm.size - 1:
                threads.kill(comm)
            comm.barrier()
        wake(session)

    monkeypatch.setattr(Session, "wake", dies)
    options = {**COMMON, "pp": 3, "micro_batches": 3}
    wanted = recovered.run_of(1, {**options, "pp": 1}, {})[0]
    left = recovered.run_of(3, options, {})
    assert wanted is not None
    assert left[1:] == [None, None]
    recovered.check(left, wanted)


def test_a_step_that_the_model_does_not_have_is_not_followed() -> None:
    """It was finished, but a second loss leaves the version before: the step is made again."""
    counters = Counters(None, StepState(2), 0, Sums(), 0, 1, False, {}, NO_TIME, {})
    facts = VersionFacts(cast(Snapshot, None), counters)
    last = StepResult(StepState(3), 8, 8.0, 1.0, 0.0, True)
    there = Holding(2, 0, (), (), facts)
    one = Standing(RunStage.RUNNING, 1, {}, None, (there,), counters, (last, None), True)
    assert agreed([one, one]).unfinished is None
    ahead = one._replace(holds=(there._replace(version=3),))
    assert agreed([ahead, one]).unfinished == last

"""From which version ranks go on, as a function of what they have told."""

from typing import Any

import pytest
from helpers.runs import rows, small

from nnmpi import Config, Trainer
from nnmpi.comm import comm_self
from nnmpi.io.checkpoints.snapshot import Changes, Snapshot
from nnmpi.io.output import NullReport
from nnmpi.io.output.pace import NO_TIME
from nnmpi.metrics import Sums
from nnmpi.nn.place import Place, StateArray
from nnmpi.parallel.recovery.backup import Version
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.run.recovery.rank_status import RankStatus, RunStage, agreed
from nnmpi.run.recovery.reported_log import adopt_reported
from nnmpi.run.recovery.run_counters import Counters, adopt, counters_now
from nnmpi.run.recovery.versions import VersionFacts
from nnmpi.run.reported_events import ReportedEvents, event_position

TENSORS = tuple(
    StateArray(Place.of_whole(path, (4,)), (0,), 0, 4, "float32") for path in ("first", "second")
)
DECISION = 8, (1.0, 0.0, 0.0, 1.0)


def status(
    stage: str, version: int, pending_version: int | None = None, knows: bool = False
) -> RankStatus:
    """A rank with one of the two tensors, which has noted the step before the last one."""
    counters = Counters(None, StepState(7), 0, Sums(), 0, 1, (), None, {}, {}, NO_TIME, {})
    head = Snapshot(Config(), 4, {}, None, counters.state, 0, Sums(), (), Changes(), ())
    facts = VersionFacts(head, counters)
    held = Version(version, [x for x in TENSORS if x.name == stage], facts)
    decision = DECISION if knows else None
    return RankStatus(
        *(RunStage.RUNNING, 0, counters),
        holds=(held,),
        tensors=TENSORS,
        pending_version=pending_version,
        decision=decision,
    )


def test_calls_are_made_again_though_another_rank_is_lost_before() -> None:
    first, second = status("first", 8), status("second", 8)
    reported = ReportedEvents()
    adopt_reported(reported, None, frozenset([event_position(8, "on_step")]))
    assert agreed([first._replace(reported=reported), second]).repeated_calls == {
        event_position(8, "on_step")
    }


@pytest.mark.parametrize("order", [1, -1])
def test_the_work_after_a_step_is_made_again_where_one_rank_has_not_done_it(order: int) -> None:
    """One rank has told of the last step, and has evaluated the epoch, which clears its sums."""
    first, second = status("first", 8), status("second", 8)
    state, made = StepState(8), Sums(samples=24)
    result = StepResult(state, 24, 24.0, 0.5, 0.0, True)

    def after(rank: RankStatus, sums: Sums, last: StepResult | None) -> RankStatus:
        counters = rank.counters._replace(state=state, sums=sums, unfollowed=last)
        facts = VersionFacts(rank.holds[0].about.head, counters)
        held = rank.holds[0]._replace(about=facts)
        return rank._replace(counters=counters, holds=(held,))

    for done, last in (made, result), (Sums(), None):
        plan = agreed([after(first, done, None), after(second, made, last)][::order])
        assert (plan.counters.unfollowed, plan.counters.sums) == (last, made)


@pytest.mark.parametrize("order", [1, -1])
def test_ranks_that_were_spare_tell_what_some_rank_has_not_told(order: int) -> None:
    ranks = [status("first", 8), status("second", 8)]
    told = [ReportedEvents(), ReportedEvents()]
    for reported, step in zip(told, (8, 7), strict=True):
        reported.claim(step, "epoch")
    statuses = [rank._replace(reported=of) for rank, of in zip(ranks, told, strict=True)]
    assert agreed(statuses[::order]).reported is told[1]


def test_without_a_whole_version_it_is_said_what_is_missing() -> None:
    plan = agreed([status("first", 8, knows=True), status("first", 7)])
    assert plan.source is None
    assert "second" in plan.missing


def test_ranks_that_have_gone_back_to_the_start_begin_again() -> None:
    """They have parts of a later version, which another loss has left without the rest."""
    after = status("first", 8)
    counters = after.counters._replace(state=StepState())
    plan = agreed([after._replace(counters=counters)])
    assert (plan.source, plan.missing) == (None, "")
    assert plan.counters == counters


def test_ranks_agree_after_a_loss_on_what_was_measured() -> None:
    """One that was a step behind has evaluated the step before, which the others are past: else it
    alone would write the best checkpoint."""

    def trainer(**options: Any) -> Trainer:
        config = Config(**{"epochs": 2, "batch_size": 16, **options})
        return Trainer(config, small, rows(), comm_self())

    ahead, behind = trainer(), trainer(epochs=1)
    behind.fit(NullReport())
    assert behind.run.measured["test_loss"] > 0
    kept = counters_now(behind.run)
    adopt(behind.run, counters_now(ahead.run))
    assert behind.run.measured == ahead.run.measured == {}
    adopt(ahead.run, kept)  # as a rank that was spare
    assert ahead.run.measured == kept.measured

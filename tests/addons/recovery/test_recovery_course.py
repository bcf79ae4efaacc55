"""From which version ranks go on, as a function of what they have told; and against all that two
ranks could, that have any parts of some versions."""

from collections.abc import Iterable, Iterator
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.runs import rows, small

from nnmpi import Config, Trainer
from nnmpi.addons.recovery.parallel.backup import Version
from nnmpi.addons.recovery.run.rank_status import Decision, RankStatus, RunStage, agreed
from nnmpi.addons.recovery.run.reported_log import adopt_reported
from nnmpi.addons.recovery.run.run_counters import Counters, adopt, counters_now
from nnmpi.addons.recovery.run.versions import VersionFacts, newest
from nnmpi.comm import comm_self
from nnmpi.io.checkpoints.snapshot import Changes, Snapshot
from nnmpi.io.output import NullReport
from nnmpi.io.output.pace import NO_TIME
from nnmpi.metrics import Sums
from nnmpi.nn.place import Place, StateArray
from nnmpi.parallel.step.executor import StepResult, StepState
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


SIZE = 4
PLACE = Place.of_whole("w", (SIZE,))
WHOLE = StateArray(PLACE, (0,), 0, SIZE, "float32")
PARTS = {0: (None, (0, 2), (0, SIZE)), 1: (None, (2, SIZE), (0, SIZE))}
"""By rank: what it may have of a version."""

Key = tuple[int, int, int]


def counters(step: int, **others: Any) -> Counters:
    plain = dict.fromkeys(Counters._fields)
    known = {"state": StepState(step), "sums": Sums(), "fit_calls": 1, "changed": {}}
    return Counters(**{**plain, **known, "restored": (), **others})


def version(at: Key, part: tuple[int, int], **others: Any) -> Version:
    step, session, renewal = at
    array = WHOLE._replace(lo=part[0], hi=part[1])
    head: Any = SimpleNamespace()
    return Version(step, [array], VersionFacts(head, counters(step, **others)), renewal, session)


def of_two(keys: Iterable[Key]) -> Iterator[tuple[list[Version], list[Version]]]:
    """Any parts that two ranks may have of these versions; the second has not done what follows the
    step."""
    choices = [[*product([at], PARTS[0], PARTS[1])] for at in keys]
    for chosen in product(*choices):
        first = [version(at, part) for at, part, _ in chosen if part]
        second = [version(at, part, unfollowed=True) for at, _, part in chosen if part]
        yield first, second


def key(one: Version | None) -> Key | None:
    return one and (one.version, one.session, one.renewal)


def whole(versions: Iterable[Version]) -> set[Key | None]:
    """The versions of which all elements are there."""
    there: dict[Key | None, np.ndarray] = {}
    for one in versions:
        for x in one.arrays:
            there.setdefault(key(one), np.zeros(SIZE, bool))[x.lo : x.hi] = True
    return {at for at, elements in there.items() if elements.all()}


def test_the_newest_version_is_that_of_which_all_is_there() -> None:
    for first, second in of_two([(3, 0, 1), (3, 0, 0), (3, 1, 0)]):
        found, missing = newest([*first, *second], [WHOLE])
        possible = whole([*first, *second])
        assert key(found) == max(possible, default=None)
        assert bool(missing) == (found is None and bool(first or second))
        if found is not None and any(key(one) == key(found) for one in second):
            assert found.about.counters.unfollowed, "what follows the step is not done again"


def test_a_step_is_made_only_where_without_it_less_is_whole() -> None:
    decisions: list[Decision | None] = [None, (3, (1.0,)), (2, (1.0,))]
    steps = 0
    for (first, second), decision, pending in product(
        [*of_two([(3, 0, 0), (2, 0, 0)])], decisions, product((None, 3), repeat=2)
    ):
        holds = [(*first,), (*second,)]
        if not all(holds):
            continue
        statuses = [
            RankStatus(
                *(RunStage.RUNNING, 0, counters(of_rank[0].version)),
                holds=of_rank,
                tensors=(WHOLE,),
                pending_version=step if of_rank[0].version == 2 else None,
                decision=decision,
            )
            for of_rank, step in zip(holds, pending, strict=True)
        ]
        plan = agreed(statuses)
        now = whole([*first, *second])
        made = [s.holds[0]._replace(version=3) for s in statuses if s.pending_version]
        then = whole([*first, *second, *made]) if decision == decisions[1] else now
        assert key(plan.source) == max(then, default=None)
        assert plan.makes_step == (max(then, default=None) != max(now, default=None))
        assert bool(plan.missing) == (plan.source is None)
        steps += plan.makes_step
    assert steps

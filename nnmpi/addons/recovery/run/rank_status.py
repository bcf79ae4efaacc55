"""After the loss of a rank: RankStatus says how far each remaining rank is, RecoveryPlan how all of
them continue.

    rank 0   step 7 made, reported         version 7   w 0..5 b 0..1   ─┐
    rank 2   step 7 made, partly reported  version 7   w 5..9          ─┴─► step 7, and the work
    rank 3   in step 7                     version 6   w 0..9 b 0..1        after it is repeated

The plan is a pure function of the statuses of all ranks, so all ranks compute the same plan.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from nnmpi.addons.recovery.parallel.backup import Version
from nnmpi.addons.recovery.run.reported_log import interrupted
from nnmpi.addons.recovery.run.run_counters import Counters
from nnmpi.addons.recovery.run.versions import newest
from nnmpi.nn.place import StateArray
from nnmpi.run.reported_events import EventPosition, ReportedEvents

Decision: TypeAlias = tuple[int, tuple[float, ...]]
"""The number of a step, and the values on which all ranks have agreed at its end."""


class RunStage(IntEnum):
    """How far a rank has come with its Trainer when another rank is lost."""

    SETTING_UP = 0
    READY = 1
    RUNNING = 2


class RankStatus(NamedTuple):
    """How far a rank is when another rank was lost, and what it still has; all remaining ranks
    exchange it. Versions are described in `versions.py`.

    stage            how far it is with its Trainer
    runs_before      how many runs the log had before this one, as far as it knows
    holds            the versions of which it has a part, without data; empty on a spare rank
    tensors          `whole_state` of the model, without data
    pending_version  the step whose summed gradients this rank has, without the decision on the
                     update: it can still make that update to the first of `holds`
    decision         the sums over all ranks that decide on the update of the newest step for which
                     this rank knows them
    checkpoint       the step of the newest checkpoint known to be written; -1: none
    callbacks        names and states of the callbacks, if some ranks are spare"""

    stage: RunStage
    session: int
    counters: Counters | None = None
    reported: ReportedEvents = ReportedEvents()
    runs_before: int = 0
    holds: tuple[Version, ...] = ()
    tensors: tuple[StateArray, ...] = ()
    pending_version: int | None = None
    decision: Decision | None = None
    checkpoint: int = -1
    callbacks: tuple[tuple[str, Any], ...] = ()

    @property
    def step(self) -> int:
        """The number of this rank's steps, without those undone."""
        return self.counters.state.step if self.counters else 0

    def can_hold(self, decision: Decision | None) -> tuple[Version, ...]:
        """Returns the versions of which this rank has a part, or would have one after an update
        with `decision`, the sums of the interrupted step."""
        if decision is None or self.pending_version != decision[0]:
            return self.holds
        return (*self.holds, self.holds[0]._replace(version=decision[0], renewal=0))


class RecoveryPlan(NamedTuple):
    """How all remaining ranks continue after the loss of a rank.

    source          the version from which the next session is made; None: the initial values, or a
                    checkpoint if something is `missing`
    counters        the counters of the run at that point; None: no remaining rank knows them
    decision        the sums over all ranks that decide on the update of the last step, if a
                    remaining rank knows them
    makes_step      True if ranks that have the summed gradients of the interrupted step make its
                    update first: without it there is no complete copy of `source`
    reported        the events that formerly spare ranks treat as reported
    callbacks       the states that callbacks of formerly spare ranks load
    repeated_calls  calls of callbacks that are repeated, because one was interrupted
    missing         for a message: the state that no remaining rank has; a checkpoint may have it"""

    stage: RunStage
    source: Version | None = None
    counters: Counters | None = None
    decision: Decision | None = None
    makes_step: bool = False
    reported: ReportedEvents = ReportedEvents()
    runs_before: int = 0
    callbacks: tuple[tuple[str, Any], ...] = ()
    repeated_calls: frozenset[EventPosition] = frozenset()
    missing: str = ""
    checkpoint: int = -1


def agreed(statuses: Sequence[RankStatus]) -> RecoveryPlan:
    """Returns the plan by which all ranks continue: from the newest version of which together they
    have a complete copy, or can make one by completing the interrupted step."""
    stages = [status.stage for status in statuses]
    workers = [status for status in statuses if status.holds]
    if RunStage.SETTING_UP in stages:
        return RecoveryPlan(RunStage.SETTING_UP)
    if not workers:
        return RecoveryPlan(max(stages), missing="no remaining rank has a part of the model")
    decision = max(filter(None, (w.decision for w in workers)), key=itemgetter(0), default=None)
    tensors = workers[0].tensors
    source, _ = newest(chain.from_iterable(w.holds for w in workers), tensors)
    can_hold = chain.from_iterable(w.can_hold(decision) for w in workers)
    made, missing = newest(can_hold, tensors)
    makes_step = made is not None and (source is None or made.version > source.version)
    source = made if makes_step else source  # never give up a version that is whole already
    checkpoint = max(status.checkpoint for status in workers)
    if source and source.version < checkpoint:  # go back to the checkpoint, which is newer
        missing, source, makes_step = f"memory has only step {source.version}", None, False
    elif not any(status.step for status in workers):  # no step was made: begin again
        missing = ""
    first = min(workers, key=_progress)
    known = [status.counters for status in workers if status.counters]
    counters = source.about.counters if source else first.counters
    assert counters is not None
    return RecoveryPlan(
        max(status.stage for status in workers),
        source,
        counters._replace(
            changed=max((status.changed for status in known), key=len),
            stop_at=next((s.stop_at for s in known if s.stop_at is not None), None),
            unfollowed=counters.unfollowed if source else None,
        ),
        decision,
        makes_step,
        first.reported,
        first.runs_before,
        first.callbacks,
        frozenset[EventPosition]().union(*(interrupted(status.reported) for status in workers)),
        missing,
        checkpoint,
    )


def _progress(status: RankStatus) -> tuple[int, EventPosition, EventPosition]:
    """Returns a sort key for ranks, by how far they are: ranks of the newest call of `fit` come
    first, and among them the rank that has reported the fewest events."""
    assert status.counters is not None
    return -status.counters.fit_calls, status.reported.events, status.reported.calls

"""RankStatus: how far each remaining rank is; RecoveryPlan: what all of them do next.

    rank 0   step 7 made, reported         version 7   w 0..5 b 0..1   ─┐
    rank 2   step 7 made, partly reported  version 7   w 5..9          ─┴─► step 7, and the work
    rank 3   in step 7                     version 6   w 0..9 b 0..1        after it is repeated

The plan is a pure function of the statuses of all ranks, so all ranks find the same plan.
"""

from collections.abc import Sequence
from enum import IntEnum
from itertools import chain
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

from nnmpi.nn.place import StateArray
from nnmpi.parallel.recovery.backup import Version
from nnmpi.run.recovery.reported_log import interrupted
from nnmpi.run.recovery.run_counters import Counters
from nnmpi.run.recovery.versions import newest
from nnmpi.run.reported_events import EventPosition, ReportedEvents

Decision: TypeAlias = tuple[int, tuple[float, ...]]
"""The number of a step, and what all ranks have agreed on at its end."""


class RunStage(IntEnum):
    """How far a rank is with its Trainer."""

    SETTING_UP = 0
    READY = 1
    RUNNING = 2


class RankStatus(NamedTuple):
    """The status of a remaining rank.

    stage            how far it is with its Trainer
    session          the number of its session
    counters         how far its run is
    reported         the events that it has reported
    runs_before      how many runs the log had before this one, as it knows
    holds            the versions of the state of which it has a part, on paper; empty on a spare
                     rank
    tensors          the parameters and buffers of the model and the state of its modules, whole
    pending_version  the step whose sums this rank knows, without the decision: it can make the
                     update of that step to the first of `holds`
    decision         the last one that it knows
    checkpoint       the newest one known to be written, of steps that were made; -1: none
    callbacks        names and states of the callbacks, where ranks are spare
    """

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
        """The number of steps that this rank has made, less those that it has undone by going
        back."""
        return self.counters.state.step if self.counters else 0

    def can_hold(self, decision: Decision | None) -> tuple[Version, ...]:
        """The versions of which this rank has a part, or will have one after the update that was
        decided."""
        if decision is None or self.pending_version != decision[0]:
            return self.holds
        return (*self.holds, self.holds[0]._replace(version=decision[0], renewal=0))


class RecoveryPlan(NamedTuple):
    """How all remaining ranks continue.

    stage           the RunStage that all ranks continue from
    source          the version that the next session is made of; None: the initial values, or a
                    checkpoint if something is `missing`
    counters        how far the run is; None: no remaining rank knows
    decision        what ranks have agreed on in the last step, if a remaining rank knows it
    makes_step      True if ranks that hold the summed gradients of the interrupted step apply that
                    update first: without it no complete copy of `source` exists
    reported        the events that formerly spare ranks treat as reported
    runs_before     how many runs the log had before this one
    callbacks       the states that callbacks of formerly spare ranks load
    repeated_calls  calls of callbacks that are repeated, because one was interrupted
    missing         the state that no remaining rank has, for a message; a checkpoint may have it
    checkpoint      the newest step known to be in a checkpoint; -1: none
    """

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
    """The plan of all ranks: they go on from the newest version of which they have, or can make, a
    whole copy."""
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
    """A sort key: ranks in the newest run come first, of these the ones that have reported
    least."""
    assert status.counters is not None
    return -status.counters.fit_calls, status.reported.events, status.reported.calls

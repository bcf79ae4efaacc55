"""Counters: how far a run is, in a form that ranks send to each other after the loss of a rank."""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from nnmpi.data import Loader
from nnmpi.io.checkpoints.snapshot import Changes, Snapshot
from nnmpi.io.output import Event
from nnmpi.io.output.pace import PaceCounts
from nnmpi.metrics import Sums
from nnmpi.parallel.step.executor import StepResult, StepState
from nnmpi.parallel.step.update import Outcome
from nnmpi.run.callbacks import Settings
from nnmpi.run.reported_events import ReportedEvents
from nnmpi.run.resume_point import ResumePoint
from nnmpi.run.run_state import RunState, StepPhase


class Counters(NamedTuple):
    """How far a run is after a step, equal on all remaining ranks: copies of fields of RunState."""

    step_range: tuple[int, int] | None
    state: StepState
    skipped: int
    sums: Sums
    first_step: int
    fit_calls: int
    restored: tuple[int, ...]
    stop_at: int | None
    metrics: Event
    measured: Event
    pace: PaceCounts
    changed: Mapping[tuple[int, str], Changes]
    unfollowed: StepResult | None = None


def counters_now(run: RunState) -> Counters:
    """Returns the counters of this rank's run after the current step."""
    sums = run.sums._replace(metrics={})  # steps measure none, and they would be sent
    progress = (
        run.step_range,
        run.state,
        run.skipped,
        sums,
        run.first_step,
        run.fit_calls,
        run.restored,
    )
    known = run.stop_at, run.metrics, run.measured, run.pace.counts
    return Counters(*progress, *known, dict(run.changed), run.unfollowed)


def counters_of(run: RunState, snapshot: Snapshot) -> Counters:
    """Returns the counters of a run at the time of a snapshot."""
    counters, is_now = counters_now(run), snapshot.state == run.state
    return counters._replace(
        step_range=snapshot.run,
        state=snapshot.state,
        skipped=snapshot.skipped,
        sums=snapshot.epoch._replace(metrics={}),
        measured=counters.measured if is_now else {},
        pace=counters.pace if is_now else counters.pace.at(snapshot.norms),
        unfollowed=run.unfollowed if is_now else None,
    )


def adopt(run: RunState, counters: Counters) -> None:
    """Sets the counters of this rank's run to those from which all remaining ranks continue."""
    if counters.fit_calls != run.fit_calls:  # this rank has not begun the run of the others
        run.reported, run.reached = ReportedEvents(), 0
    elif len(counters.restored) > len(run.restored):  # this rank has not completed one
        run.reported.go_back(counters.state.step)
        run.reached = 0
    run.set_step_range(counters.step_range)
    _, run.state, run.skipped, run.sums, run.first_step, run.fit_calls, *_ = counters
    run.restored, run.stop_at = counters.restored, counters.stop_at
    run.metrics, run.measured = counters.metrics, counters.measured
    run.changed = {**counters.changed}
    run.pace, run.unfollowed = run.pace.again(counters.pace), counters.unfollowed
    run.phase, run.in_epoch = StepPhase.BETWEEN_STEPS, False


def adopt_checkpoint(run: RunState, resumed: ResumePoint) -> None:
    """Sets the counters of this rank's run to those of a checkpoint; later steps are repeated."""
    run.restored = resumed.restored
    counters = counters_of(run, resumed.snapshot)
    adopt(run, counters._replace(pace=resumed.pace, unfollowed=None))
    run.reported.claim(run.first_step, "start")


def keep_changes(run: RunState, settings: Settings, occasion: str) -> None:
    """Records which settings callbacks have changed on an occasion such as "on_step". If the step
    is a repetition, restores the changes recorded the first time."""
    key, changes = (run.state.step, occasion), settings.changes
    if key in run.changed:
        settings.change(run.changed[key])
    elif changes != next(reversed(run.changed.values()), settings.unchanged):
        run.changed[key] = changes


def result_of(loader: Loader, state: StepState, end: int, sums: Sequence[float]) -> StepResult:
    """Returns the result of the step, or round of local steps, that follows `state` and ends with
    step number `end`; `sums` are those over all ranks, such as of the loss."""
    samples, divisor = 0, 0.0
    for rows in islice(loader.batches(state.epoch), state.batch, state.batch + end - state.step):
        samples += len(rows)
        divisor += loader.divisor(loader.split.y.take(rows, axis=0))
        state = state.next(len(loader))
    return StepResult(state, samples, divisor, *Outcome.of(sums))

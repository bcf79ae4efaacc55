"""The counters of a run where ranks go on after a loss: those that all of them take over."""

from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.run.reported import ReportedEvents
from nnmpi.run.resume import ResumePoint
from nnmpi.run.run_state import Counters, RunState, StepPhase


def counters_of(run: RunState, snapshot: Snapshot) -> Counters:
    """The counters that belong to a snapshot of this run."""
    counters, is_now = run.counters, snapshot.state == run.state
    return counters._replace(
        span=snapshot.run,
        state=snapshot.state,
        skipped=snapshot.skipped,
        sums=snapshot.epoch._replace(metrics={}),
        measured=counters.measured if is_now else {},
        pace=counters.pace if is_now else counters.pace.at(snapshot.norms),
        last=run.last if is_now else None,
    )


def adopt(run: RunState, counters: Counters) -> None:
    """Takes over the counters that all remaining ranks go on from."""
    if counters.runs != run.runs:  # this rank has not begun the run of the others
        run.reported, run.reached = ReportedEvents(), 0
    elif len(counters.restored) > len(run.restored):  # this rank has not completed one
        run.reported.go_back(counters.state.step)
        run.reached = 0
    run.set_span(counters.span)
    _, run.state, run.skipped, run.sums, run.first, run.runs, *_ = counters
    run.restored, run.stop_at = counters.restored, counters.stop_at
    run.metrics, run.measured = counters.metrics, counters.measured
    run.changed = {**counters.changed}
    run.pace, run.last = run.pace.again(counters.pace), counters.last
    run.phase, run.in_epoch = StepPhase.BETWEEN_STEPS, False


def adopt_checkpoint(run: RunState, resumed: ResumePoint) -> None:
    """Takes over the counters of a checkpoint of this run; its later steps are made again."""
    run.restored = resumed.restored
    counters = counters_of(run, resumed.snapshot)
    adopt(run, counters._replace(pace=resumed.pace, last=None))
    run.reported.once(run.first, "start")

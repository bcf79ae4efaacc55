"""The loop of training: epochs, their steps and evaluation, and the end of a run.

    epoch ─► step ─► what follows it (`following.py`) ─► step ... ─► evaluation ─► epoch ... ─► end

It asks for the session each time, since a callback may end it and open another.
"""

from contextlib import closing

import numpy as np

from nnmpi.comm import RankLost
from nnmpi.metrics import Sums, mean
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run import ends
from nnmpi.run.following import Follow, after_step, call, compare_settings
from nnmpi.run.report import Event
from nnmpi.run.report.pace import measured
from nnmpi.run.run_state import StepPhase
from nnmpi.run.training import Training


def train(t: Training) -> Event:
    """Makes the steps of a run that are left, and what follows them; returns its last event."""
    try:
        with t.tracer.of_run():
            _epochs(t)
    except (AgreedError, RankLost):
        raise
    except Exception as error:  # but not Ctrl-C, which may have interrupted an update
        ends.rescue(t.session, error)
        raise
    return _end(t)


def _epochs(t: Training) -> None:
    """All epochs that are left; or the run is suspended."""
    run = t.run
    while not run.is_evaluated:
        _epoch(t)
        if run.stopping and _requests(t)[1]:
            run.metrics = t.checkpoints.suspend(t.session)
            return
        train, run.sums = run.sums, Sums()
        try:
            _evaluate(t, train)
        except BaseException:
            run.sums = train  # the epoch is not over
            raise


def _epoch(t: Training) -> None:
    """Steps until the end of the epoch or of the run, in one session or several."""
    run, sessions = t.run, 0
    run.in_epoch = True
    if run.sums.samples:
        run.pace.resume()
    else:
        run.pace.start()
    try:
        if (result := run.last) is not None:  # a rank was lost before all that follows was done
            loss = mean(result.loss, result.divisor)
            ends.check_finite(t.session, "loss", loss, run.state.step)
            for follow in after_step(t):
                follow(result, loss)
            run.pace.resume()
        while sessions != run.sessions and not run.epoch_is_over:
            sessions = run.sessions
            _steps(t, [*after_step(t)])
    finally:
        run.in_epoch = False
    run.report.end_progress()


def _steps(t: Training, following: list[Follow]) -> None:
    """Steps until the end of the epoch, of the run or of the session."""
    run = t.run
    t.session.model.train()
    own = t.comm.size > 1 and "lr_schedule" in t.setup.own
    compare_settings(t, all_or_none(t.comm, run.factors_of_epoch) if own else ())
    with closing(t.session.steps()) as steps:
        run.phase = StepPhase.COMPUTING
        for result in steps:
            run.phase = StepPhase.BETWEEN_STEPS
            loss = mean(result.loss, result.divisor)
            ends.check_finite(t.session, "loss", loss, result.state.step)
            run.note(result)
            for follow in following:
                follow(result, loss)
            run.pace.resume()
            if run.is_over and not result.is_followed:
                break
            run.phase = StepPhase.COMPUTING
    run.phase = StepPhase.BETWEEN_STEPS


def _evaluate(t: Training, train: Sums) -> None:
    """Evaluates the model after the steps of an epoch, tells the result, and saves."""
    run = t.run
    test = t.session.evaluate()
    ends.check_finite(t.session, "test loss", test.mean_loss, run.state.step)
    metrics = {
        "steps": run.state.step,
        **measured(t.setup.dataset, t.setup.loss, train, test),
        **run.pace.rates,
        "skipped_steps": run.skipped,
    }
    facts = {"lr": t.session.last_lr, **t.session.scale, **run.pace.of_epoch()}
    event = {"event": "epoch", "epoch": run.epochs, **metrics, **facts}
    run.tell("epoch", event)
    call(t, "on_epoch", event)
    # requests may have come after the last step had agreed
    stops, suspends, saves = _requests(t)
    suspends = suspends and run.has_more
    run.stopping = run.stopping or stops or suspends
    if suspends:
        run.metrics = t.checkpoints.suspend(t.session, metrics)
        return
    if not run.is_over:
        t.checkpoints.after_epoch(t.session, metrics, saves)
    run.metrics = {**metrics, "epochs": event["epoch"]}
    run.pace.resume()


def _requests(t: Training) -> list[bool]:
    """Whether some rank wants to stop the run, to suspend it, and a checkpoint."""
    row = np.array([t.run.stop_requested, t.run.suspend_requested, t.checkpoints.is_due()], float)
    t.comm.all_reduce(row, "doubling")
    wanted: list[bool] = (row > 0).tolist()
    return wanted


def _end(t: Training) -> Event:
    """Saves the model, and tells the result of the run."""
    is_suspended = "checkpoint" in t.run.metrics
    if not is_suspended:
        t.session.check_copies()
        ends.save(t.session)
        t.session.check_copies(buffers=True)  # after the model was saved: nothing is lost
    result = ends.result(t, t.checkpoints.finish(), is_suspended)
    t.run.tell("result", result)
    call(t, "on_end", result)
    if not is_suspended:
        t.checkpoints.end(t.session, t.run.metrics)
    return result

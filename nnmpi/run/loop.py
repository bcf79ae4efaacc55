"""The training loop: epochs, their steps and evaluation, and the end of a run.

    epoch ─► step ─► hooks (`after_step.py`) ─► step ... ─► evaluation ─► epoch ... ─► end

The loop reads `trainer.session` each time, because a callback may end the session and open another.
"""

from collections.abc import Iterable
from contextlib import closing

from nnmpi.comm import RankLost
from nnmpi.io.output import Event
from nnmpi.metrics import Sums, mean
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.step.executor import StepResult
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run import end
from nnmpi.run.after_step import after_step
from nnmpi.run.calls import call, compare_settings
from nnmpi.run.evaluation import evaluate, evaluation_event, requests
from nnmpi.run.run_state import StepPhase
from nnmpi.run.training import StepHook, Training


def train(trainer: Training) -> Event:
    """Makes the remaining steps of a run, with evaluation and callbacks; returns its last event."""
    try:
        with trainer.tracer.of_run():
            _epochs(trainer)
    except (AgreedError, RankLost):
        raise
    except Exception as error:  # not KeyboardInterrupt: it may come in the midst of an update
        end.rescue(trainer.session, error)
        raise
    return _end(trainer)


def _epochs(trainer: Training) -> None:
    """Runs the remaining epochs of a run, and suspends the run if a rank has asked for that."""
    run = trainer.run
    while not run.is_evaluated:
        _epoch(trainer)
        if run.is_stopped and _suspends(trainer):
            run.metrics = trainer.checkpoints.suspend(trainer.session)
            return
        train, run.sums = run.sums, Sums()
        try:
            _evaluate(trainer, train)
        except BaseException:
            run.sums = train  # the epoch is not over
            raise


def _epoch(trainer: Training) -> None:
    """Makes the remaining steps of an epoch or run; a callback may replace the session."""
    run, sessions = trainer.run, 0
    run.in_epoch = True
    if run.sums.samples:
        run.pace.resume()
    else:
        run.pace.start()
    try:
        if run.unfollowed is not None:  # a loss interrupted the work after this step
            _follow(trainer, after_step(trainer), run.unfollowed)
        while sessions != run.sessions and not run.epoch_is_over:
            sessions = run.sessions
            _steps(trainer, after_step(trainer))
    finally:
        run.in_epoch = False
    run.report.end_progress()


def _steps(trainer: Training, following: list[StepHook]) -> None:
    """Makes training steps until the end of the epoch, of the run or of the session, and calls the
    functions `following` after each."""
    run = trainer.run
    trainer.session.model.train()
    is_own = trainer.comm.size > 1 and "lr_schedule" in trainer.setup.user_functions
    factors = all_or_none(trainer.comm, run.factors_of_epoch) if is_own else ()
    compare_settings(trainer, factors)
    trainer.supervisor.begin_steps(trainer.session)
    with closing(trainer.session.steps()) as steps:
        run.phase = StepPhase.COMPUTING
        for result in steps:
            run.phase = StepPhase.BETWEEN_STEPS
            _follow(trainer, following, result)
            if run.is_over and not result.next_is_computed:
                break
            run.phase = StepPhase.COMPUTING
    run.phase = StepPhase.BETWEEN_STEPS


def _follow(trainer: Training, following: Iterable[StepHook], result: StepResult) -> None:
    """Counts a step, and calls what follows each step, such as reports."""
    run, loss = trainer.run, mean(result.loss, result.divisor)
    end.check_finite(trainer.session, "loss", loss, result.state.step)
    if result is not run.unfollowed:  # otherwise it is counted already
        run.count_step(result)
    for follow in following:
        follow(result, loss)
    run.pace.resume()


def _evaluate(trainer: Training, train: Sums) -> None:
    """Evaluates the model after an epoch, reports the result with `train`, the sums of losses over
    the epoch's training steps, calls callbacks, and saves a checkpoint if one is due."""
    run = trainer.run
    run.measured = {"loss": train.mean_loss, **evaluate(trainer)}
    metrics = {
        "steps": run.state.step,
        **run.measured,
        **run.pace.rates,
        "skipped_steps": run.skipped,
    }
    facts = {"lr": trainer.session.last_lr, **trainer.session.scale, **run.pace.of_epoch()}
    event = {"event": "epoch", "epoch": run.epochs, **metrics, **facts}
    run.report_event("epoch", event)
    call(trainer, "on_evaluate", evaluation_event(trainer))
    call(trainer, "on_epoch", event)
    # again, although steps agree on requests too: some may have come since the last step
    stops, suspends, saves = requests(trainer)
    suspends = suspends and run.has_more
    if stops or suspends:
        run.stop_here()
    if suspends:
        run.suspend_requested = True  # on all ranks: the one that has asked may be lost
        run.metrics = trainer.checkpoints.suspend(trainer.session)
        return
    if not run.is_over:
        trainer.checkpoints.after_epoch(trainer.session, saves)
    run.metrics = {**metrics, "epochs": event["epoch"]}
    run.pace.resume()


def _suspends(trainer: Training) -> bool:
    """True if a run that has stopped early is to be suspended: if a rank asks for it; or if
    checkpoints are written and no remaining rank asks to stop, since then a lost rank did. Every
    rank calls it."""
    stops, suspends, _ = requests(trainer)
    suspends = suspends or (not stops and trainer.checkpoints.are_written)
    trainer.run.suspend_requested = suspends  # on all ranks: the one that has asked may be lost
    return suspends


def _end(trainer: Training) -> Event:
    """Saves the model, reports the result of the run, and returns it as the last event."""
    is_suspended = "checkpoint" in trainer.run.metrics
    if not is_suspended:
        trainer.session.check_copies()
        end.save(trainer.session)
        trainer.session.check_copies(buffers=True)  # after saving: a difference loses nothing
        if end.has_huge_loss(trainer.run):
            end.check_rise(trainer)  # after saving: the model may be wanted nevertheless
    result = end.result(trainer, trainer.checkpoints.finish(), is_suspended)
    trainer.run.report_event("result", result)
    call(trainer, "on_end", result)
    if not is_suspended:
        trainer.checkpoints.end(trainer.session)
    return result

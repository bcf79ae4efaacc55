"""Functions that a run calls after each step: reports, samples of text, evaluation, checkpoints."""

from collections.abc import Callable, Iterator
from functools import partial

from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.calls import agree, call
from nnmpi.run.evaluation import evaluate_step
from nnmpi.run.training import Sampler, StepHook, Training


def after_step(trainer: Training) -> list[StepHook]:
    """Returns the functions called after each step, such as reports and checkpoints."""
    return trainer.supervisor.around(trainer, [*_hooks(trainer)])


def _hooks(trainer: Training) -> Iterator[StepHook]:
    """Yields the functions called after each step, in order, one for each feature that is on."""
    config = trainer.config
    if config.check_copies:
        yield every(config.check_copies, trainer, trainer.session.check_copies)
    yield partial(_progress, trainer)
    if trainer.run.log_every:
        yield partial(_log_step, trainer)
    if trainer.sampler is not None:
        yield every(trainer.sampler.every, trainer, partial(_sample, trainer, trainer.sampler))
    if "on_step" in trainer.hears:
        yield partial(_call_on_step, trainer)
    if trainer.hears & {"on_log", "on_step"}:
        yield partial(_agree, trainer)
    if config.evaluate_every:
        yield every(config.evaluate_every, trainer, partial(evaluate_step, trainer))
    if trainer.checkpoints.are_written:
        yield lambda result, _: trainer.checkpoints.after_step(trainer.session, result)


def every(steps: int, trainer: Training, act: Callable[[], None]) -> StepHook:
    """Returns a function to be called after each step: it calls `act` whenever the number of steps
    has passed another multiple of `steps`, since several steps may have one result."""
    # if a loss interrupted the work after a step, that step is followed again
    last = trainer.run.state.step - (trainer.run.unfollowed is not None)

    def follow(result: StepResult, loss: float) -> None:
        nonlocal last
        is_due = result.state.step // steps != last // steps
        last = result.state.step
        if is_due:
            act()

    return follow


def _progress(trainer: Training, result: StepResult, loss: float) -> None:
    """Reports step and `loss` as progress, unless reported before a rank was lost."""
    run, step = trainer.run, result.state.step
    if run.reported.claim(step, "progress"):
        run.report.progress(step, run.total_steps, loss, run.pace.epoch_rates)


def _log_step(trainer: Training, result: StepResult, loss: float) -> None:
    """Reports a step in the log if one is due (--log-every), and calls on_log of callbacks: means
    since the last report, the learning rate, seconds and speed."""
    run, session = trainer.run, trainer.session
    if not run.logs_step:
        return
    at = {"step": run.state.step, "steps": run.total_steps, "epoch": run.position}
    means, rates = run.pace.of_window()
    facts = {**means, "lr": session.last_lr, **session.scale}
    event = {"event": "step", **at, **facts, "seconds": run.pace.seconds, **rates}
    run.report_event("step", event)
    call(trainer, "on_log", event)


def _sample(trainer: Training, sampler: Sampler) -> None:
    """Generates a text with the model in training, and reports it."""
    step, text = trainer.run.state.step, sampler.text(trainer.session)
    trainer.run.report_event("sample", {"event": "sample", "step": step, "text": text})


def _call_on_step(trainer: Training, result: StepResult, loss: float) -> None:
    """Calls on_step of callbacks."""
    call(trainer, "on_step", {"event": "step", "step": result.state.step, "loss": loss})


def _agree(trainer: Training, result: StepResult, loss: float) -> None:
    """Lets ranks that step together compare settings and agree on a stop, after callbacks."""
    is_called = "on_step" in trainer.hears or trainer.run.logs_step
    if is_called and trainer.session.arrangement.steps_together:
        agree(trainer)

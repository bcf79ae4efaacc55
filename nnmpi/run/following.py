"""Functions that follow a step of a run, and calls of callbacks after steps, epochs and the run."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from nnmpi.io.output import Event
from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.reported import event_position
from nnmpi.run.text.samples import Sampler
from nnmpi.run.training import Training

StepHook: TypeAlias = Callable[[StepResult, float], None]
"""A function that follows a completed step; its second argument is the mean loss of a sample."""


def after_step(trainer: Training) -> Iterator[StepHook]:
    """The functions that follow each step in this session, one for each feature that is on."""
    config, survives = trainer.config, trainer.comm.fault_tolerant
    if survives:
        yield partial(_begun, trainer)
    if config.check_copies:
        yield every(config.check_copies, trainer, trainer.session.check_copies)
    yield partial(_progress_once if survives else _progress, trainer)
    if trainer.sampler is not None:
        yield every(trainer.sampler.every, trainer, partial(_sample, trainer, trainer.sampler))
    if trainer.hears_steps:
        yield partial(_call_on_step, trainer)
    if config.checkpoint_dir:
        yield lambda result, _: trainer.checkpoints.after_step(trainer.session, result)
    if survives:
        yield partial(_done, trainer)


def _begun(trainer: Training, result: StepResult, loss: float) -> None:
    """Records that work after a step begins: if a rank is lost, all of that work is done again,
    except for events that were already reported."""
    trainer.run.last = result


def _done(trainer: Training, result: StepResult, loss: float) -> None:
    """Records that the work after a step is done."""
    trainer.run.last = None
    trainer.session.back_up()


def every(steps: int, trainer: Training, act: Callable[[], None]) -> StepHook:
    """A hook that acts each time the run has made so many more steps; a result may be of several
    steps."""
    # if a loss interrupted the work after a step, that step is followed again
    last = trainer.run.state.step - (trainer.run.last is not None)

    def follow(result: StepResult, loss: float) -> None:
        nonlocal last
        is_due = result.state.step // steps != last // steps
        last = result.state.step
        if is_due:
            act()

    return follow


def _progress(trainer: Training, result: StepResult, loss: float) -> None:
    """Reports the progress of a step."""
    run = trainer.run
    run.report.progress(result.state.step, run.total_steps, loss, run.pace.epoch_rates)


def _progress_once(trainer: Training, result: StepResult, loss: float) -> None:
    if trainer.run.reported.once(result.state.step, "progress"):
        _progress(trainer, result, loss)


def _sample(trainer: Training, sampler: Sampler) -> None:
    """Reports a text sampled from the model."""
    step, text = trainer.run.state.step, sampler.text(trainer.session)
    trainer.run.report_event("sample", {"event": "sample", "step": step, "text": text})


# ---- callbacks


def _call_on_step(trainer: Training, result: StepResult, loss: float) -> None:
    """Calls on_step of callbacks; ranks that make steps together then compare the settings that
    callbacks may have changed."""
    call(trainer, "on_step", {"event": "step", "step": result.state.step, "loss": loss})
    if trainer.session.arrangement.steps_together:
        compare_settings(trainer)


def compare_settings(trainer: Training, factors: Sequence[float] = ()) -> None:
    """Raises AgreedError, on all ranks, if a callback has changed settings on some ranks only, or
    if a user's schedule returns different factors."""
    together = trainer.session.arrangement.steps_together
    trainer.session.settings.compare(trainer.comm, "" if together else ", in on_epoch", factors)


def call(trainer: Training, occasion: str, event: Event) -> None:
    """Calls a method of all callbacks, except for calls that were completed before a rank was
    lost."""
    run, step = trainer.run, trainer.run.state.step
    for i, callback in enumerate(trainer.callbacks):
        position = event_position(step, occasion, i)
        if hasattr(callback, occasion) and not run.reported.is_called(position):
            with run.reported.call(position):
                getattr(callback, occasion)(trainer, {**event, **trainer.session.scale})
    if run.state.step < step:  # a callback restored an older snapshot: report its steps again
        run.reported.go_back(run.state.step)
    if trainer.comm.fault_tolerant and not trainer.session.is_closed:
        _keep_changes(trainer, occasion)
    run.pace.resume()
    if trainer.session.is_closed and trainer.comm.size > 1 and occasion != "on_end":
        raise ValueError(
            f"{occasion} of a callback has closed this Trainer while its run goes on: call "
            "trainer.stop() there, and close() after fit"
        )


def _keep_changes(trainer: Training, occasion: str) -> None:
    """Records which settings callbacks have changed; in a step that is made again, restores the
    recorded changes."""
    run, settings = trainer.run, trainer.session.settings
    key, changes = (run.state.step, occasion), settings.changes
    if key in run.changed:
        settings.change(run.changed[key])
    elif changes != next(reversed(run.changed.values()), settings.unchanged):
        run.changed[key] = changes

"""Functions that follow a step of a run, and calls of callbacks after steps, epochs and the run."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TypeAlias

from nnmpi.parallel.step.executor import StepResult
from nnmpi.run.report import Event
from nnmpi.run.text.samples import Sampler
from nnmpi.run.told import place
from nnmpi.run.training import Training

Follow: TypeAlias = Callable[[StepResult, float], None]
"""A function of a step that was made and noted, and the loss of a sample in it."""


def after_step(t: Training) -> Iterator[Follow]:
    """What follows a step in this session: of each feature that is on, one function."""
    config, survives = t.config, t.comm.fault_tolerant
    if survives:
        yield partial(_begun, t)
    if config.check_copies:
        yield partial(_check_copies, t, config.check_copies)
    yield partial(_progress_once if survives else _progress, t)
    if t.sampler is not None:
        yield partial(_sample, t, t.sampler)
    if t.hears_steps:
        yield partial(_call_on_step, t)
    if config.checkpoint_dir:
        yield lambda result, _: t.checkpoints.after_step(t.session, result)
    if survives:
        yield partial(_done, t)


def _begun(t: Training, result: StepResult, loss: float) -> None:
    """What follows a step begins: after the loss of a rank all of it is done again, but for what
    was told."""
    t.run.last = result


def _done(t: Training, result: StepResult, loss: float) -> None:
    """What follows a step is done."""
    t.run.last = None
    t.session.back_up()


def _check_copies(t: Training, every: int, result: StepResult, loss: float) -> None:
    if result.state.step % every == 0:
        t.session.check_copies()


def _progress(t: Training, result: StepResult, loss: float) -> None:
    """Tells that a step was made."""
    run = t.run
    run.report.progress(result.state.step, run.total_steps, loss, run.pace.epoch_rates)


def _progress_once(t: Training, result: StepResult, loss: float) -> None:
    if t.run.told.once(result.state.step, "progress"):
        _progress(t, result, loss)


def _sample(t: Training, sampler: Sampler, result: StepResult, loss: float) -> None:
    """Tells a piece of text that the model writes now, every so many steps."""
    step = result.state.step
    if step % sampler.every == 0:
        text = sampler.text(t.session)
        t.run.tell("sample", {"event": "sample", "step": step, "text": text})


# ---- callbacks


def _call_on_step(t: Training, result: StepResult, loss: float) -> None:
    """Calls callbacks; ranks that make the step together compare what these change."""
    call(t, "on_step", {"event": "step", "step": result.state.step, "loss": loss})
    if t.session.arrangement.steps_together:
        compare_settings(t)


def compare_settings(t: Training, factors: Sequence[float] = ()) -> None:
    """Raises AgreedError, on all ranks, if a callback has changed something on some ranks, or if a
    schedule returns other factors."""
    together = t.session.arrangement.steps_together
    t.session.settings.compare(t.comm, "" if together else ", in on_epoch", factors)


def call(t: Training, occasion: str, event: Event) -> None:
    """Calls what callbacks have for this occasion, unless that was done before a rank was lost."""
    run, step = t.run, t.run.state.step
    for i, callback in enumerate(t.callbacks):
        here = place(step, occasion, i)
        if hasattr(callback, occasion) and not run.told.is_called(here):
            with run.told.call(here):
                getattr(callback, occasion)(t, {**event, **t.session.scale})
    if run.state.step < step:  # a callback went back: the steps since then are told as others
        run.told.go_back(run.state.step)
    if t.comm.fault_tolerant and not t.session.is_closed:
        _keep_changes(t, occasion)
    run.pace.resume()
    if t.session.is_closed and t.comm.size > 1 and occasion != "on_end":
        raise ValueError(
            f"{occasion} of a callback has closed this Trainer, whose run goes on: call "
            "trainer.stop() there, and close() after fit"
        )


def _keep_changes(t: Training, occasion: str) -> None:
    """Records what callbacks have changed, or changes it when a step is made again."""
    run, settings = t.run, t.session.settings
    key, now = (run.state.step, occasion), settings.changes
    if key in run.changed:
        settings.change(run.changed[key])
    elif now != next(reversed(run.changed.values()), settings.unchanged):
        run.changed[key] = now

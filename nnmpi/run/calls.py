"""Calls callbacks; then ranks compare settings, and agree on whether one asks to stop."""

from collections.abc import Sequence

from nnmpi.io.output import Event
from nnmpi.run.reported_events import event_position
from nnmpi.run.training import Training


def compare_settings(trainer: Training, factors: Sequence[float] = ()) -> bool:
    """Raises AgreedError, on all ranks, if their settings or `factors` differ (`Settings.compare`);
    returns True, on all, if one asks to stop or suspend the run. Every rank calls it."""
    session, asks = trainer.session, trainer.run.asks_to_stop
    when = "" if session.arrangement.steps_together else ", in on_epoch"
    return session.settings.compare(trainer.comm, when, factors, asks)


def agree(trainer: Training) -> None:
    """Compares settings after callbacks, and stops all ranks if one asks. Every rank calls it."""
    if compare_settings(trainer):
        trainer.run.stop_here()


def call(trainer: Training, occasion: str, event: Event) -> None:
    """Calls a method such as "on_step" of all callbacks, but for calls made before a loss."""
    run, step = trainer.run, trainer.run.state.step
    for i, callback in enumerate(trainer.callbacks):
        position = event_position(step, occasion, i)
        if hasattr(callback, occasion) and not run.reported.is_called(position):
            with run.reported.call(position):
                getattr(callback, occasion)(trainer, {**event, **trainer.session.scale})
    if run.state.step < step:  # a callback restored an older snapshot: report its steps again
        run.reported.go_back(run.state.step)
    trainer.supervisor.called(trainer, occasion)
    run.pace.resume()
    if trainer.session.is_closed and trainer.comm.size > 1 and occasion != "on_end":
        raise ValueError(
            f"{occasion} of a callback has closed this Trainer while its run goes on: call "
            "trainer.stop() there, and close() after fit"
        )

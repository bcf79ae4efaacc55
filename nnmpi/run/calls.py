"""Calls callbacks after steps, evaluations, epochs and the run, and compares the settings that they
may change."""

from collections.abc import Sequence

from nnmpi.io.output import Event
from nnmpi.run.reported_events import event_position
from nnmpi.run.training import Training


def compare_settings(trainer: Training, factors: Sequence[float] = ()) -> None:
    """Raises AgreedError, on all ranks, if a callback has changed settings on some ranks only, or
    if `factors`, the next values of a user's learning rate schedule, differ between ranks. Every
    rank calls it."""
    together = trainer.session.arrangement.steps_together
    trainer.session.settings.compare(trainer.comm, "" if together else ", in on_epoch", factors)


def call(trainer: Training, occasion: str, event: Event) -> None:
    """Calls the method `occasion`, such as "on_step", of all callbacks, except for calls that were
    completed before a rank was lost."""
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

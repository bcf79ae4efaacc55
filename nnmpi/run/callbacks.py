"""Callbacks: what a user does between the steps and the epochs of a Trainer.

    on_step(trainer, event)     after each step, once its loss is known
    on_epoch(trainer, event)    after each epoch and its evaluation
    on_end(trainer, event)      after the run

A callback is an object with any of them. Every rank calls it with an event of the same values, but
for times and rates, so that all ranks decide alike. An exception in it ends the run on all ranks.
"""

from collections.abc import Iterable

OCCASIONS = ("on_step", "on_epoch", "on_end")


def check_callbacks(objects: Iterable[object]) -> list[object]:
    """The callbacks; raises ValueError for an object that has none of the methods."""
    if not isinstance(objects, Iterable):
        raise ValueError(f"callbacks is a {type(objects).__name__}: give a list of callbacks")
    found = list(objects)
    for one in found:
        if isinstance(one, type) or not any(hasattr(one, name) for name in OCCASIONS):
            raise ValueError(
                f"callback {one!r:.60} is no object with one of the methods "
                f"{', '.join(OCCASIONS)}, each of which takes (trainer, event)"
            )
    return found

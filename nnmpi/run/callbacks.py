"""Callbacks: what a user does between the steps and the epochs of a Trainer.

    on_step(trainer, event)     after each step, once its loss is known
    on_epoch(trainer, event)    after each epoch and its evaluation
    on_end(trainer, event)      after the run; ranks share nothing any more

A callback is an object with any of them. Every rank calls it with an event of the same values, but
for times and rates, so that all ranks decide alike. An exception in it ends the run on all ranks.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from nnmpi.run.report import Event

Told = Callable[[Any, Event], object]


class Callbacks(NamedTuple):
    """The functions for each occasion, in the order of the objects that have them."""

    on_step: tuple[Told, ...]
    on_epoch: tuple[Told, ...]
    on_end: tuple[Told, ...]

    @classmethod
    def of(cls, objects: Iterable[object]) -> "Callbacks":
        """Raises ValueError for an object that has none of them."""
        if not isinstance(objects, Iterable):
            raise ValueError(f"callbacks is a {type(objects).__name__}: give a list of callbacks")
        objects = list(objects)
        for one in objects:
            if isinstance(one, type) or not any(hasattr(one, name) for name in cls._fields):
                raise ValueError(
                    f"callback {one!r:.60} is no object with one of the methods "
                    f"{', '.join(cls._fields)}, each of which takes (trainer, event)"
                )
        found = (tuple(getattr(o, f) for o in objects if hasattr(o, f)) for f in cls._fields)
        return cls(*found)

"""Callbacks: what a user does between the steps and the epochs of a Trainer.

    on_step(trainer, event)     after each step, once its loss is known
    on_epoch(trainer, event)    after each epoch and its evaluation
    on_end(trainer, event)      after the run
    state_dict()                what a checkpoint has of it: numbers, texts, arrays, lists, dicts
    load_state_dict(state)      the same, in a run that is resumed

A callback is an object with any of the first three. Every rank calls it with an event of the same
values, but for times and rates, so that all ranks decide alike. An exception in it ends the run on
all ranks. Of a state, that of the first rank is kept, and all ranks get it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

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


def states_of(callbacks: Sequence[Any]) -> list[tuple[str, Any]]:
    """The names and states of the callbacks that have one."""
    return [(type(one).__name__, one.state_dict()) for one in callbacks if _has_state(one)]


def load_states(callbacks: Sequence[Any], states: Sequence[tuple[str, Any]]) -> None:
    """Gives callbacks their states; raises ValueError if these are of others."""
    own = [one for one in callbacks if _has_state(one)]
    here, there = [type(one).__name__ for one in own], [name for name, _ in states]
    if here != there:
        raise ValueError(
            f"the checkpoint has states of the callbacks {', '.join(there) or 'none'}, and this "
            f"Trainer has {', '.join(here) or 'none'} with a state_dict: give it the same ones"
        )
    for one, (_, state) in zip(own, states, strict=True):
        one.load_state_dict(state)


def _has_state(callback: Any) -> bool:
    return hasattr(callback, "state_dict") and hasattr(callback, "load_state_dict")

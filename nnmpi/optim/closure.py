"""Calls the closure given to `step`, which computes the loss and the gradients."""

from collections.abc import Callable
from typing import Any

from nnmpi.autograd.recording import recording


def called(closure: Callable[[], Any]) -> Any:
    """Calls a user's closure, which computes the loss and the gradients, with autograd switched on;
    returns its loss. Raises ValueError if it is no function."""
    if not callable(closure):
        raise ValueError(
            f"step: the closure {closure!r} is no function; a factor of the learning rates is "
            "given as step(lr_factor=0.5)"
        )
    token = recording.set(recording.get() or True)
    try:
        return closure()
    finally:
        recording.reset(token)

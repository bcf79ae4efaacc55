"""Calls the closure of an optimizer's step, which computes the gradients."""

from collections.abc import Callable
from typing import Any

from nnmpi.autograd.recording import recording


def called(closure: Callable[[], Any]) -> Any:
    """Calls a closure while gradients are recorded, and returns its loss."""
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

"""Gradient clipping by the norm over all parameters."""

from collections.abc import Iterable

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.nn.parameter import Parameter


def clip_factor(norm: float, max_norm: float) -> float:
    """The factor that makes the norm of gradients at most `max_norm`."""
    return min(max_norm / (norm + 1e-6), 1.0)


def clip_grad_norm(parameters: Iterable[Parameter], max_norm: float) -> Array:
    """Scale all gradients so that their total norm is at most `max_norm`; return the norm before.

    The norm stays on the device, as a 0-d array, so the host does not wait for it.
    """
    if max_norm <= 0:
        raise ValueError(f"max_norm {max_norm} must be above 0")
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        raise ValueError("clip_grad_norm: no parameter has a gradient; call it after backward")
    xp = backend.xp_of(grads[0])
    norm = xp.sqrt(sum((g * g).sum() for g in grads))
    factor = xp.minimum(max_norm / (norm + 1e-6), 1.0)
    for g in grads:
        g *= factor
    return norm

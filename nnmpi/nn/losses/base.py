"""Loss: the base of the losses, modules from predictions and targets to a scalar.

`divisor(target)` is what the mean divides the sum by. Where samples are on several ranks, each sums
the losses of its own, and divides by the divisor of all.
"""

from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import softmax
from nnmpi.backend import Array
from nnmpi.nn.module import Module


class Loss(Module):
    """The base of the losses: how the losses of the samples are reduced to one."""

    def __init__(self, *, reduction: str = "mean") -> None:
        if reduction not in softmax.REDUCTIONS:
            raise ValueError(f"reduction {reduction!r} is none of {', '.join(softmax.REDUCTIONS)}")
        self.reduction = reduction

    def __call__(self, *args: Any) -> Tensor:
        """Unlike a module's, it is not counted as a forward pass: nothing in a loss is random."""
        loss: Tensor = self.forward(*args)
        return loss

    def divisor(self, target: Any) -> float:
        """What the mean divides the sum by: the numbers of the target."""
        return float(as_tensor(target).size)


def weights(name: str, what: str, weight: Any) -> np.ndarray | None:
    """Weights on the host; raises ValueError for what is none."""
    if weight is None:
        return None
    if isinstance(weight, str):
        raise ValueError(f"{name}: {what} {weight!r}: write {name}(reduction={weight!r})")
    found = backend.to_host(array_of(weight))
    if found.dtype.kind not in "biuf" or not np.isfinite(found).all():
        raise ValueError(f"{name}: {what} {weight!r:.60} holds other than finite numbers")
    return found.astype("float64")


def array_of(value: Any) -> Array:
    """The array of a tensor, an array, or nested lists of numbers."""
    value = value.data if isinstance(value, Tensor) else value
    return value if backend.is_array(value) else np.asarray(value)

"""The head of a gradient buffer: numbers that are summed over ranks together with the gradients.

    flat_grad   [ loss | stop | used 0 | used 1 | ... | gradients ... ]

They cost no message of their own. `used i` counts the ranks on which parameter i got a gradient.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.backend import Array
from nnmpi.nn.parameter import Parameter

LOSS, STOP, USED = 0, 1, 2


def head_length(parameters: Sequence[object]) -> int:
    """The loss, the request to stop, and one number a parameter."""
    return USED + len(parameters)


def used(parameters: Iterable[Parameter], head: Array) -> Any:
    """For each parameter 1 if it has a gradient, else 0; of the type and backend of `head`."""
    flags = np.array([p.has_grad for p in parameters], head.dtype)
    return backend.of(head).asarray(flags)


def fill_unused(parameters: Iterable[Parameter]) -> None:
    """Zeros where there is no gradient."""
    for p in parameters:
        if not p.has_grad:
            p.slot[...] = 0

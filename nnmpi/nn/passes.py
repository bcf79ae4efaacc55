"""A forward pass through a whole model: what its layers may know beside the samples."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np

from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array


class Across(Protocol):
    """How a layer learns of the samples of its batch that are elsewhere."""

    def statistics(self, own: Moments, track: Callable[[Moments], None]) -> Moments:
        """The moments a layer normalises with, from those of the samples here.

        `track` moves the layer's running statistics; it is called once a forward, now or
        later, with what they should see.
        """

    def total(self, sums: Array) -> Array:
        """The sum of a 1-D array over all who have samples of the batch."""


class _Alone:
    """All samples are here."""

    def statistics(self, own: Moments, track: Callable[[Moments], None]) -> Moments:
        track(own)
        return own

    def total(self, sums: Array) -> Array:
        return sums


ALONE: Across = _Alone()


class Pass(NamedTuple):
    """One forward pass through a whole model: what keyed randomness and statistics depend on.

    `samples` are the global indices of the samples here; None stands for 0, 1, 2, ...
    """

    step: int
    samples: np.ndarray | None = None
    across: Across = ALONE


current_pass: ContextVar[Pass | None] = ContextVar("nnmpi_pass", default=None)
"""The pass under way; without a trainer each model counts its own training passes."""

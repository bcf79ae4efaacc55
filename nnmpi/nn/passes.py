"""A forward pass through a whole model: what its layers know besides their input."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np

from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array


class BatchStats(Protocol):
    """Statistics of a batch of which this rank may hold only some samples."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """The moments to normalise with, from those of the samples here.

        `track` updates the layer's running statistics. It is called once a forward pass, now or
        later, with the moments of the whole batch.
        """

    def sum(self, sums: Array) -> Array:
        """The sum of a 1-D array over all ranks that hold samples of the batch."""


class Local:
    """BatchStats where all samples are on this rank."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        track(local)
        return local

    def sum(self, sums: Array) -> Array:
        return sums


LOCAL: BatchStats = Local()


class Pass(NamedTuple):
    """One forward pass: what keyed randomness and batch statistics depend on.

    `samples` are the global indices of the samples here; None stands for 0, 1, 2, ...
    """

    step: int
    samples: np.ndarray | None = None
    batch_stats: BatchStats = LOCAL


current_pass: ContextVar[Pass | None] = ContextVar("nnmpi_pass", default=None)
"""The pass being computed; without a trainer each model counts its own training passes."""

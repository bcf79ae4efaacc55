"""Pass: what the layers of a model depend on in a forward pass besides their input."""

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np

from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array


class BatchStats(Protocol):
    """Sums over a batch of which this rank may hold only some samples."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """The moments to normalise with, given those of the samples on this rank.

        `track` updates the running statistics of the layer. It is called once per forward pass,
        now or later, with the moments of the whole batch.
        """

    def sum(self, sums: Array) -> Array:
        """The sum of a 1-D array over all ranks that hold samples of the batch."""


class Local:
    """BatchStats if all samples are on this rank."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        track(local)
        return local

    def sum(self, sums: Array) -> Array:
        return sums


class Untracked(Local):
    """BatchStats of a pass that leaves the running statistics as they are."""

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return local


class KeptStats:
    """BatchStats of a forward pass that runs twice: the second one gets the moments of the first.

    Then nothing is asked for or tracked again.
    """

    def __init__(self, inner: BatchStats) -> None:
        self._inner, self._kept = inner, list[Moments]()
        self._again: Iterator[Moments] | None = None

    def again(self) -> None:
        """The second pass begins."""
        self._again = iter(self._kept)

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        if self._again is not None:
            return next(self._again)
        self._kept.append(self._inner.moments(local, track))
        return self._kept[-1]

    def sum(self, sums: Array) -> Array:
        return self._inner.sum(sums)


LOCAL: BatchStats = Local()
UNTRACKED: BatchStats = Untracked()


class Pass(NamedTuple):
    """One forward pass, for keyed randomness and batch statistics.

    samples  the global indices of the samples on this rank; None stands for 0, 1, 2, ...
    counted  whether the next pass has another step: as soon as a module in training mode runs,
             or because a trainer counts the steps
    """

    step: int
    samples: np.ndarray | None = None
    batch_stats: BatchStats = LOCAL
    counted: bool = True


current_pass: ContextVar[Pass | None] = ContextVar("nnmpi_pass", default=None)
"""The current pass. Without a trainer, `Module.__call__` sets it, and counts the passes in which
any module is in training mode."""

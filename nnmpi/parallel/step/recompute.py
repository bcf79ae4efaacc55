"""Batch statistics of a forward pass that runs twice: once to send its output on, once to record.

F           moments are asked for, tracked and kept
RECOMPUTE   the same moments in the same order: nothing is asked for or tracked again
"""

from collections.abc import Callable

from nnmpi.autograd.ops.norm import Moments
from nnmpi.backend import Array
from nnmpi.nn.passes import BatchStats


class Kept:
    """The `BatchStats` of the first pass."""

    def __init__(self, inner: BatchStats) -> None:
        self._inner, self._kept = inner, list[Moments]()

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        whole = self._inner.moments(local, track)
        self._kept.append(whole)
        return whole

    def sum(self, sums: Array) -> Array:
        return self._inner.sum(sums)

    def replayed(self) -> "Replayed":
        """Those of the second pass."""
        return Replayed(self._inner, self._kept)


class Replayed:
    """The `BatchStats` of the second pass."""

    def __init__(self, inner: BatchStats, kept: list[Moments]) -> None:
        self._inner, self._kept = inner, iter(kept)

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        return next(self._kept)

    def sum(self, sums: Array) -> Array:
        return self._inner.sum(sums)

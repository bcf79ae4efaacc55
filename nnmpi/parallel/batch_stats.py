"""Computes BatchNorm statistics of a whole batch whose samples are divided among ranks."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd.ops.norm import Moments, joined
from nnmpi.comm import Comm
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.wire import Wire, is_in_order, wire_for

WireFor: TypeAlias = Callable[[Comm, Array], Wire]

GATHER, SUM = "halving", "doubling"  # for short rows: log2 p rounds, equal bits on all ranks


class Synced:
    """Computes BatchNorm statistics of samples on several ranks, of which some may have none.

    Each method is one collective. All ranks call them in the same order, since they run the same
    model: forward in the order of its layers, backward in the order that autograd recorded.
    """

    def __init__(self, comm: Comm, wire_for: WireFor = wire_for) -> None:
        self._comm, self._wire_for = comm, wire_for

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the moments of the whole batch, with equal bits on all ranks; `track` gets them.

        All ranks' moments (n, mean, M2) are gathered in float64 and merged in the order of ranks.
        On NCCL, where the host does not wait, all-reduces sum them instead.
        """
        with waiting("statistics"):
            wire = self._wire_for(self._comm, local.mean)
            sums = self._summed if is_in_order(wire) else self._gathered
            of_batch = like(local, sums(local))
        track(of_batch)
        return of_batch

    def _gathered(self, local: Moments) -> Moments:
        rows = np.tile(packed(local), self._comm.size)  # of which one is this rank's
        self._wire_for(self._comm, rows).all_gather(rows, GATHER)
        return joined([*map(unpacked, np.split(rows, self._comm.size))])

    def _summed(self, local: Moments) -> Moments:
        """Returns the moments of the whole batch by two all-reduces, for which the host does not
        wait: of n * mean, then of M2 + n (local mean - mean)^2."""
        count = np.array([local.n])
        self._comm.all_reduce(count, SUM)
        n, local_mean = int(count[0]), local.mean.astype("float64")
        mean = self.sum(local_mean * (local.n / max(n, 1)))
        local_mean -= mean
        return Moments(n, mean, self.sum(local_mean * local_mean * local.n + local.m2))

    def sum(self, sums: Array) -> Array:
        """Returns the sum of a 1-D array over all ranks, in a new array."""
        total = sums.copy()
        with waiting("statistics"):
            self._wire_for(self._comm, sums).all_reduce(total, SUM)
        return total


def packed(m: Moments) -> np.ndarray:
    """Returns (n, mean, M2) of all channels as one float64 array on the host, to be sent."""
    on = backend.of(m.mean)
    pair = backend.to_list(on.xp.concatenate((m.mean, m.m2)))
    return np.concatenate(([m.n], pair), dtype=np.float64)


def unpacked(row: np.ndarray) -> Moments:
    """Returns the moments (n, mean, M2) in `row`, an array made by `packed`, still in float64."""
    return Moments(int(row[0]), *np.split(row[1:], 2))


def like(local: Moments, m: Moments) -> Moments:
    """Returns the moments m, converted to the device and the dtype of `local`."""
    on = backend.of(local.mean)
    return Moments(m.n, *(on.asarray(a, local.mean.dtype) for a in (m.mean, m.m2)))

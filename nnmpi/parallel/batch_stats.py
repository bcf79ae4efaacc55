"""BatchNorm statistics of a batch that is divided among ranks: they are those of the whole
batch."""

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
    """The `nnmpi.nn.passes.BatchStats` of ranks that each have some samples of a batch, or none.

    Each method is one collective, so all ranks must call them in the same order. They do: all run
    the same model, forward in the order of its layers and backward in the order of the tape.

    wire_for   returns the wire of the Comm for an array
    """

    def __init__(self, comm: Comm, wire_for: WireFor = wire_for) -> None:
        self._comm, self._wire_for = comm, wire_for

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """Returns the moments of the whole batch, which it passes to `track` as well; all ranks get
        equal bits.

        (n, mean, M2) of all ranks travel in float64 and are joined in the order of ranks. A wire
        whose calls the host never waits for, such as NCCL, sums them instead.
        """
        with waiting("statistics"):
            wire = self._wire_for(self._comm, local.mean)
            sums = self._summed if is_in_order(wire) else self._gathered
            of_batch = like(local, sums(local))
        track(of_batch)
        return of_batch

    def _gathered(self, local: Moments) -> Moments:
        rows = np.empty((self._comm.size, 1 + 2 * local.mean.size))
        rows[self._comm.rank] = packed(local)
        self._wire_for(self._comm, rows).all_gather(rows, GATHER)
        return joined([unpacked(row) for row in rows])

    def _summed(self, local: Moments) -> Moments:
        """Returns the moments by two sums: the mean, then M2 + n (local mean - mean)^2; the host
        waits for neither."""
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
    """Returns (n, mean, M2) of all channels as one row of float64 on the host."""
    on = backend.of(m.mean)
    pair = backend.to_list(on.xp.concatenate((m.mean, m.m2)))
    return np.concatenate(([m.n], pair), dtype=np.float64)


def unpacked(row: np.ndarray) -> Moments:
    """Returns the moments in a row made by `packed`, still in float64."""
    return Moments(int(row[0]), *np.split(row[1:], 2))


def like(local: Moments, m: Moments) -> Moments:
    """Returns moments m with the backend and dtype of `local`."""
    on = backend.of(local.mean)
    return Moments(m.n, *(on.asarray(a, local.mean.dtype) for a in (m.mean, m.m2)))

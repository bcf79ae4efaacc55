"""Statistics of a batch that is cut over ranks: BatchNorm sees it as one."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd.ops.norm import Moments, joined
from nnmpi.comm import Comm
from nnmpi.parallel.recorder import waiting
from nnmpi.parallel.wire import StagedComm, Wire, wire_for

WireFor: TypeAlias = Callable[[Comm, Array], Wire]

GATHER, SUM = "halving", "doubling"  # log2 p rounds, and equal bits on all ranks: rows are short


class Synced:
    """`nnmpi.nn.passes.BatchStats` of ranks that each have some samples of a batch, or none.

    Each method is one collective, so every rank calls them in the same order. It does: all ranks
    run the same model, forward in the order of its layers and backward in the order of the tape.

    wire_for   gives the wire of the Comm for an array
    """

    def __init__(self, comm: Comm, wire_for: WireFor = wire_for) -> None:
        self._comm, self._wire_for = comm, wire_for

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """The moments of the whole batch, tracked at once; the same bits on every rank.

        All ranks' (n, mean, M2) travel in float64 and are joined in the order of ranks, or summed
        by a wire for whose calls nobody waits.
        """
        with waiting("statistics"):
            wire = self._wire_for(self._comm, local.mean)
            in_order = isinstance(wire, StagedComm) and wire.in_order
            of_batch = like(local, self._summed(local) if in_order else self._gathered(local))
        track(of_batch)
        return of_batch

    def _gathered(self, local: Moments) -> Moments:
        rows = np.empty((self._comm.size, 1 + 2 * local.mean.size))
        rows[self._comm.rank] = packed(local)
        self._comm.all_gather(rows, GATHER)
        return joined([unpacked(row) for row in rows])

    def _summed(self, local: Moments) -> Moments:
        """The mean first, and then M2 + n (local mean - mean)^2: nobody waits for a device."""
        count = np.array([local.n])
        self._comm.all_reduce(count, SUM)
        n, local_mean = int(count[0]), local.mean.astype("float64")
        mean = self.sum(local_mean * (local.n / max(n, 1)))
        local_mean -= mean
        return Moments(n, mean, self.sum(local_mean * local_mean * local.n + local.m2))

    def sum(self, sums: Array) -> Array:
        """The sum over all ranks of a 1-D array, in an array of its own."""
        total = sums.copy()
        with waiting("statistics"):
            self._wire_for(self._comm, sums).all_reduce(total, SUM)
        return total


def packed(m: Moments) -> np.ndarray:
    """(n, mean, M2) of all channels in one row, float64 and on the host."""
    on = backend.of(m.mean)
    pair = backend.to_list(on.xp.concatenate((m.mean, m.m2)))
    return np.concatenate(([m.n], pair), dtype=np.float64)


def unpacked(row: np.ndarray) -> Moments:
    """The inverse of `packed`, still in float64."""
    return Moments(int(row[0]), *np.split(row[1:], 2))


def like(local: Moments, m: Moments) -> Moments:
    """m on the backend and in the type of `local`."""
    on = backend.of(local.mean)
    return Moments(m.n, *(on.asarray(a, local.mean.dtype) for a in (m.mean, m.m2)))

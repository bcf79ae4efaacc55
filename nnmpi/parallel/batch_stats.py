"""Statistics of a batch that is cut over ranks: BatchNorm sees it as one."""

from collections.abc import Callable

import numpy as np

from nnmpi import backend
from nnmpi.autograd.ops.norm import Moments, joined
from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.parallel.recorder import NO_RECORDER, Recorder

GATHER, SUM = "halving", "doubling"  # log2 p rounds, and equal bits on all ranks: rows are short


class Synced:
    """`nnmpi.nn.passes.BatchStats` of ranks that each have some samples of a batch, or none.

    Each method is one collective, so every rank calls them in the same order. It does: all ranks
    run the same model, forward in the order of its layers and backward in the order of the tape.
    """

    def __init__(self, comm: Comm, recorder: Recorder = NO_RECORDER) -> None:
        self._comm, self._recorder = comm, recorder

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        """The moments of the whole batch, tracked at once; the same bits on every rank.

        All ranks' (n, mean, M2) travel in float64 and are joined in the order of ranks.
        """
        rows = np.empty((self._comm.size, 1 + 2 * local.mean.size))
        rows[self._comm.rank] = packed(local)
        began = self._recorder.now()
        self._comm.all_gather(rows, GATHER)
        self._recorder.add("statistics", began)
        whole = like(local, joined([unpacked(row) for row in rows]))
        track(whole)
        return whole

    def sum(self, sums: Array) -> Array:
        """The sum over all ranks of a 1-D array, in an array of its own."""
        whole = np.array(backend.to_host(sums))
        began = self._recorder.now()
        self._comm.all_reduce(whole, SUM)
        self._recorder.add("statistics", began)
        return backend.of(sums).asarray(whole)


def packed(m: Moments) -> np.ndarray:
    """(n, mean, M2) of all channels in one row, float64 and on the host."""
    on = backend.of(m.mean)
    pair = backend.to_host(on.xp.concatenate((m.mean, m.m2)))
    return np.concatenate(([m.n], pair), dtype=np.float64)


def unpacked(row: np.ndarray) -> Moments:
    """The inverse of `packed`, still in float64."""
    return Moments(int(row[0]), *np.split(row[1:], 2))


def like(local: Moments, m: Moments) -> Moments:
    """m on the backend and in the type of `local`."""
    on = backend.of(local.mean)
    return Moments(m.n, *(on.asarray(a, local.mean.dtype) for a in (m.mean, m.m2)))

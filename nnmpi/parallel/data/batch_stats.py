"""A batch that is cut over ranks, seen as one by the layers that need all of it."""

from collections.abc import Callable

import numpy as np

from nnmpi import backend
from nnmpi.autograd.ops.norm import Moments, joined
from nnmpi.backend import Array
from nnmpi.comm import Comm

GATHER, SUM = "halving", "doubling"  # log2 p rounds, and equal bits on all ranks: rows are short


class Together:
    """`nnmpi.nn.passes.Across` for ranks that each have some samples of a batch, or none.

    Each method is one collective, so every rank calls them in the same order. That holds by
    itself where all ranks run the same model: the layers meet in the order of their forward
    passes, and on the way back in the order of the tape, which is that of the same graph.
    """

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def statistics(self, own: Moments, track: Callable[[Moments], None]) -> Moments:
        """The moments of the whole batch, tracked at once; the same bits on every rank.

        All ranks' (n, mean, M2) travel in float64 and are joined in the order of ranks.
        """
        every = np.empty((self._comm.size, 1 + 2 * own.mean.size))
        every[self._comm.rank] = packed(own)
        self._comm.all_gather(every, GATHER)
        whole = like(own, joined([unpacked(row) for row in every]))
        track(whole)
        return whole

    def total(self, sums: Array) -> Array:
        """The sum over all ranks of a 1-D array, in an array of its own."""
        whole = np.array(backend.to_host(sums))
        self._comm.all_reduce(whole, SUM)
        return backend.of(sums).asarray(whole)


def packed(m: Moments) -> np.ndarray:
    """(n, mean, M2) of all channels in one row, float64 and on the host."""
    on = backend.of(m.mean)
    pair = backend.to_host(on.xp.concatenate((m.mean, m.m2)))
    return np.concatenate(([m.n], pair), dtype=np.float64)


def unpacked(row: np.ndarray) -> Moments:
    """The way back of `packed`, still in float64."""
    return Moments(int(row[0]), *np.split(row[1:], 2))


def like(own: Moments, m: Moments) -> Moments:
    """m where `own` is, and of its type."""
    on = backend.of(own.mean)
    return Moments(m.n, *(on.asarray(a, own.mean.dtype) for a in (m.mean, m.m2)))

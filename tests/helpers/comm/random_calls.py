"""Random collectives and messages, the same on all ranks, each beside what NumPy makes of them.

Numbers are small integers, so that sums are exact in any order.
"""

from typing import Any, NamedTuple

import numpy as np
from helpers.comm.brought import Array

from nnmpi.collectives import algorithms
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm, Work
from nnmpi.comm.allreduce.dispatch import NAMES

DTYPES = ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u4", "c8")
AUTO = 0.005  # it measures all algorithms, which takes seconds
ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": NAMES,
    "start": NAMES,
    "reduce_scatter": tuple(algorithms.REDUCE_SCATTERS),
    "start_reduce_scatter": tuple(algorithms.REDUCE_SCATTERS),
    "all_gather": tuple(algorithms.ALL_GATHERS),
    "start_all_gather": tuple(algorithms.ALL_GATHERS),
    "broadcast": tuple(algorithms.BROADCASTS),
    "reduce": tuple(algorithms.REDUCES),
    "message": ("",),
    "barrier": ("",),
}


class Call(NamedTuple):
    """A call, the same on all ranks; `parts` are the lengths of the ranks' parts."""

    operation: str
    algorithm: str
    n: int
    dtype: str
    root: int
    parts: list[int] | None


class Begun(NamedTuple):
    """A call that may not be complete, and what it has to give."""

    call: Call
    work: Work | None
    got: Array
    want: Array


def drawn(rng: np.random.Generator, size: int) -> Call:
    operation = str(rng.choice(list(ALGORITHMS)))
    n = int(rng.choice([0, 1, size, 7, 64, 1000, rng.integers(5000), rng.integers(70_000)]))
    edges = np.sort(rng.integers(0, n + 1, size - 1)) if rng.random() < 0.5 else None
    parts = None if edges is None else np.diff([0, *edges, n]).tolist()
    algorithm = str(rng.choice(ALGORITHMS[operation]))
    if operation in ("all_reduce", "start") and rng.random() < AUTO:
        algorithm = "auto"
    return Call(operation, algorithm, n, str(rng.choice(DTYPES)), int(rng.integers(size)), parts)


class RandomCalls:
    """Calls on communicators that number the ranks differently; each rank waits and polls at
    random."""

    def __init__(self, comm: Comm, seed: int) -> None:
        back, same = comm.split(0, -comm.rank), comm.split(0)
        self.comms, self.seed = (comm, back, same), seed
        self.common = np.random.default_rng(seed)
        self.own = np.random.default_rng((seed, comm.rank))
        self.begun: list[Begun] = []
        self.wrong: list[str] = []

    def run(self, calls: int) -> list[str]:
        """The calls with wrong results."""
        for i in range(calls):
            comm = self.comms[self.common.integers(3)]
            self.begun.append(self._begin(comm, drawn(self.common, comm.size), i))
            while self.begun and (len(self.begun) > 8 or self.own.random() < 0.4):
                self._finish(int(self.own.integers(len(self.begun))))
            works = [one.work for one in self.begun if one.work is not None]
            if works and self.own.random() < 0.3:
                works[self.own.integers(len(works))].poll()
        while self.begun:
            self._finish(0)
        for comm in self.comms[1:]:
            comm.free()
        return self.wrong

    def _finish(self, i: int) -> None:
        call, work, got, want = self.begun.pop(i)
        if work is not None:
            work.wait()
        if not np.array_equal(got, want):
            self.wrong.append(f"{call} on {self.comms[0].size} ranks")

    def _numbers(self, i: int, rank: int, call: Call) -> Array:
        low, rng = 0 if call.dtype[0] == "u" else -8, np.random.default_rng((self.seed, i, rank))
        return rng.integers(low, 9, call.n).astype(call.dtype)

    def _begin(self, comm: Comm, call: Call, i: int) -> Begun:
        operation, name, n, dtype, root, parts = call
        rank, size = comm.rank, comm.size
        every = [self._numbers(i, r, call) for r in range(size)]
        ends = bounds(n, size) if parts is None else (0, *np.cumsum(parts).tolist())
        own, x = slice(*ends[rank : rank + 2]), every[rank].copy()
        total = np.sum(every, axis=0, dtype=dtype)
        whole = np.concatenate([a[ends[r] : ends[r + 1]] for r, a in enumerate(every)])
        work: Any = None
        got, want = x, total
        if operation in ("all_reduce", "start"):
            work = getattr(comm, operation)(x, name)
        elif operation == "reduce_scatter":
            got, want = comm.reduce_scatter(x, name, parts), total[own]
        elif operation == "start_reduce_scatter":
            work, got, want = comm.start_reduce_scatter(x, name, parts), x[own], total[own]
        elif operation in ("all_gather", "start_all_gather"):
            work, want = getattr(comm, operation)(x, name, parts), whole
        elif operation == "broadcast":
            comm.broadcast(x, root, name)
            want = every[root]
        elif operation == "reduce":
            comm.reduce(x, root, name)
            want = total if rank == root else every[rank]
        elif operation == "message":
            to, source = (rank + root) % size, (rank - root) % size
            got, want = np.empty_like(x), every[source]
            work = comm.irecv(got, source, i)
            self.begun.append(Begun(call, comm.isend(x, to, i), x, every[rank]))
        else:
            comm.barrier()
            want = x
        return Begun(call, work, got, want)

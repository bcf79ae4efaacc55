"""Random collectives against NumPy: mpirun -n N python tests/faults/fuzz_collectives.py SEED.

All ranks draw the same calls. Numbers are small integers, so that sums are exact in any order.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from fuzzing import GOOD, Fault, Outcome
from helpers import mpijob

from nnmpi.collectives import algorithms
from nnmpi.comm import Comm, Work, world
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.allreduce.dispatch import NAMES

DTYPES = ("f4", "f8", "f2", "i1", "i2", "i4", "i8", "u1", "u4", "c8")
CALLS = 30
AUTO = 0.005  # it measures all algorithms, which takes seconds
OF_A_JOB = 8  # sequences of calls in one job of MPI

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
    """A call that may not be complete, and the check of its result."""

    call: Call
    work: Work | None
    is_right: Callable[[], bool]


def drawn(rng: np.random.Generator, size: int) -> Call:
    operation = str(rng.choice(list(ALGORITHMS)))
    n = int(rng.choice([0, 1, size, 7, 64, 1000, rng.integers(5000), rng.integers(70_000)]))
    edges = np.sort(rng.integers(0, n + 1, size - 1)) if rng.random() < 0.5 else None
    parts = None if edges is None else np.diff([0, *edges, n]).tolist()
    algorithm = str(rng.choice(ALGORITHMS[operation]))
    if operation in ("all_reduce", "start") and rng.random() < AUTO:
        algorithm = "auto"
    return Call(operation, algorithm, n, str(rng.choice(DTYPES)), int(rng.integers(size)), parts)


class Sequence:
    """Random calls on a communicator and on one that numbers the ranks backwards."""

    def __init__(self, comm: Comm, seed: int) -> None:
        back = comm.split(0, -comm.rank)
        assert back is not None
        self.comms, self.seed = (comm, back), seed
        self.common = np.random.default_rng(seed)
        self.own = np.random.default_rng((seed, comm.rank))
        self.begun: list[Begun] = []
        self.wrong: list[str] = []

    def run(self) -> list[str]:
        """The calls with wrong results."""
        for i in range(CALLS):
            comm = self.comms[self.common.integers(2)]
            self.begun.append(self._begin(comm, drawn(self.common, comm.size), i))
            while self.begun and (len(self.begun) > 6 or self.own.random() < 0.4):
                self._finish(int(self.own.integers(len(self.begun))))
        while self.begun:
            self._finish(0)
        self.comms[1].free()
        return self.wrong

    def _finish(self, i: int) -> None:
        call, work, is_right = self.begun.pop(i)
        if work is not None:
            work.wait()
        if not is_right():
            self.wrong.append(f"{call} on {self.comms[0].size} ranks")

    def _numbers(self, i: int, rank: int, call: Call) -> np.ndarray:
        low = 0 if call.dtype.startswith("u") else -8
        return (
            np.random.default_rng((self.seed, i, rank)).integers(low, 9, call.n).astype(call.dtype)
        )

    def _begin(self, comm: Comm, call: Call, i: int) -> Begun:
        every = [self._numbers(i, rank, call) for rank in range(comm.size)]
        mine = every[comm.rank].copy()
        edges = self._edges(comm, call)
        own = slice(edges[comm.rank], edges[comm.rank + 1])
        total = np.sum(every, axis=0, dtype=call.dtype)
        name, what, parts = call.algorithm, call.operation, call.parts

        def equal(got: Any, want: Any) -> Callable[[], bool]:
            return lambda: np.array_equal(got, want)

        if what == "all_reduce":
            comm.all_reduce(mine, name)
            return Begun(call, None, equal(mine, total))
        if what == "start":
            return Begun(call, comm.start(mine, name), equal(mine, total))
        if what == "reduce_scatter":
            part = comm.reduce_scatter(mine, name, parts)
            return Begun(call, None, equal(part, total[own]))
        if what == "start_reduce_scatter":
            work = comm.start_reduce_scatter(mine, name, parts)
            return Begun(call, work, equal(mine[own], total[own]))
        if what in ("all_gather", "start_all_gather"):
            whole = np.concatenate([a[edges[r] : edges[r + 1]] for r, a in enumerate(every)])
            if what == "all_gather":
                comm.all_gather(mine, name, parts)
                return Begun(call, None, equal(mine, whole))
            return Begun(call, comm.start_all_gather(mine, name, parts), equal(mine, whole))
        if what == "broadcast":
            comm.broadcast(mine, call.root, name)
            return Begun(call, None, equal(mine, every[call.root]))
        if what == "reduce":
            comm.reduce(mine, call.root, name)
            return Begun(call, None, equal(mine, total if comm.rank == call.root else mine.copy()))
        if what == "message":
            to, source = (comm.rank + call.root) % comm.size, (comm.rank - call.root) % comm.size
            got = np.empty_like(mine)
            work = comm.irecv(got, source, i)
            sent = comm.isend(mine, to, i)
            self.begun.append(Begun(call, sent, lambda: True))
            return Begun(call, work, equal(got, every[source]))
        comm.barrier()
        return Begun(call, None, lambda: True)

    @staticmethod
    def _edges(comm: Comm, call: Call) -> list[int]:
        parts = call.parts or [
            call.n * (r + 1) // comm.size - call.n * r // comm.size for r in range(comm.size)
        ]
        return [0, *np.cumsum(parts).tolist()]


def wrong(comm: Comm, seed: int) -> list[str]:
    return Sequence(comm, seed).run()


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    """On threads, which share memory in nodes of any size."""
    size, seed = int(rng.integers(1, 7)), int(rng.integers(2**31))
    per_node = int(rng.integers(1, size + 1))
    found = threads.run(size, wrong, seed, per_node=per_node)
    return _outcome([text for texts in found for text in texts])


def mpi_case(rng: np.random.Generator, folder: Path) -> Outcome:
    """On processes of MPI."""
    size, seed = int(rng.integers(2, 4)), int(rng.integers(2**31))
    ended = mpijob.run(size, __file__, str(seed), timeout=90, env={"PYTHONPATH": _path()})
    if ended.status is None:
        return Outcome(Fault.HUNG, f"{size} ranks, seed {seed}: {ended.err[-2000:]}")
    return _outcome([ended.out + ended.err[-2000:]] if ended.status else [])


def _outcome(texts: list[str]) -> Outcome:
    return Outcome(Fault.WRONG, "; ".join(texts)[:3000]) if texts else GOOD


def _path() -> str:
    """Where `fuzzing` and the helpers are."""
    return ":".join([str(mpijob.ROOT), *sys.path])


def main() -> int:
    comm, seed = world(), int(sys.argv[1])
    found = [text for i in range(OF_A_JOB) for text in wrong(comm, seed + i)]
    print(*found, sep="\n")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

"""Random collectives against NumPy: mpirun -n N python tests/faults/fuzz_collectives.py SEED."""

import sys
from pathlib import Path

import numpy as np
from fuzzing import GOOD, Fault, Outcome
from helpers import mpijob
from helpers.comm.random_calls import RandomCalls

from nnmpi.comm import Comm, world
from nnmpi.comm import thread_ranks as threads

CALLS = 30
OF_A_JOB = 8  # sequences of calls in one job of MPI


def wrong(comm: Comm, seed: int) -> list[str]:
    return RandomCalls(comm, seed).run(CALLS)


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

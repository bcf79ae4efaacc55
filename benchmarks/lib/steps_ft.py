"""The ranks of benchmarks/faults.py, which time tasks, as jobs.py says."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

from lib import jobs
from lib.workloads import TRAINED, endless
from nnmpi import Config, Trainer
from nnmpi.arrays import blas
from nnmpi.comm import world


def steps(case: str, batch: int) -> Callable[[int], object]:
    """Makes so many steps of a training without end."""
    options = {**TRAINED[case], "batch_size": batch}
    trainer = Trainer(Config(**options, allreduce="shared", epochs=1), comm=world())
    made = endless(trainer)
    return lambda n: [*islice(made, n)]


def main(folder: str) -> None:
    """Run on every rank of a job."""
    blas.tune()
    comm = world()
    jobs.serve(Path(folder), comm.rank, comm.barrier, steps)

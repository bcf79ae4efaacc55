"""The ranks of benchmarks/faults.py: rank.py lib.steps_ft FOLDER."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lib import jobs
from nnmpi import Config, Trainer, blas
from nnmpi.comm import world
from nnmpi.parallel.step.executor import StepState

CASES: dict[str, dict[str, Any]] = {
    "W1": {"model": "mnist-cnn", "data": "synthetic:1x28x28:10:6400"},
    "W2": {"model": "mlp:784-1024-1024-10", "data": "synthetic:784:10:12800"},
}
BATCH = {"W1": 64, "W2": 128}


def steps(case: str, batch: int) -> Callable[[int], object]:
    """Makes so many steps of a training without end."""
    trainer = Trainer(
        Config(**CASES[case], batch_size=batch, allreduce="shared", epochs=1), comm=world()
    )

    def endless() -> Iterator[object]:
        state = StepState()
        trainer.model.train()
        while True:
            for result in trainer.strategy.steps(trainer.train, state):
                state = result.state
                yield state

    made = endless()
    return lambda n: [*islice(made, n)]


def main(folder: str) -> None:
    """Run on every rank of a job."""
    blas.tune()
    comm = world()
    jobs.serve(Path(folder), comm.rank, comm.barrier, steps)

"""Measures a Trainer on one device or, under mpirun, on several: the seconds to the end of its
first step, the samples per second from then on, and the peak of memory. Rank 0 prints one line of
JSON.

    python scripts/gpu_trainer.py DEVICE MODEL DATA DTYPE STEPS BATCH
"""

import json
import sys
import time
from typing import Any

from nnmpi import Config, Trainer
from nnmpi.arrays import backend
from nnmpi.comm import world
from nnmpi.io.output import NullReport


class Clock(NullReport):
    """Notes the time at which the end of each step was known."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def progress(self, *_: Any) -> None:
        self.times.append(time.perf_counter())


def main() -> None:
    """Trains, and prints what was measured."""
    device, model, data, dtype, steps, batch = sys.argv[1:]
    begin, clock, comm = time.perf_counter(), Clock(), world()
    config = Config(
        device=device,
        model=model,
        data=data,
        dtype=dtype,
        steps=int(steps),
        batch_size=int(batch),
        quiet=True,
    )
    with Trainer(config, comm=comm) as trainer:
        done = trainer.fit(clock)
        algorithm = trainer.arrangement.algorithm
    found = {
        "model": model,
        "dtype": dtype,
        "ranks": comm.size,
        "allreduce": algorithm,
        "first_step_seconds": clock.times[0] - begin,
        "samples_per_second": done["samples_per_second"],
    }
    if device == "cuda":  # CuPy's pool keeps what was allocated
        found["peak_bytes"] = backend.get(device).xp.get_default_memory_pool().total_bytes()
    if comm.rank == 0:
        print(json.dumps(found))


if __name__ == "__main__":
    main()

"""The ranks of benchmarks/faults.py.

serve FOLDER          time tasks, as jobs.py says
parts CASE STEPS      seconds of the parts of a step that fault tolerance changes, and of a step
"""

import json
import time
from collections.abc import Callable
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from lib import jobs, ranks
from lib.workloads import TRAINED, endless
from nnmpi import Config, Trainer, blas, optim
from nnmpi.comm import world
from nnmpi.parallel.replicas.gradient_sync import BucketedSync
from nnmpi.parallel.step.kept_buffers import KeptBuffers
from nnmpi.parallel.step.update import Update
from nnmpi.parallel.stores.local import LocalStore
from nnmpi.parallel.stores.node import NodeStore

PARTS: dict[str, tuple[type, str]] = {
    "polls": (BucketedSync, "poll"),
    "totals": (LocalStore, "totals"),
    "notes": (Update, "_mark"),
    "optimizer": (optim.Adam, "step"),
    "settle": (NodeStore, "settle"),
    "buffers": (KeptBuffers, "keep"),
}
"""Where a step does something else if ranks may be lost, or the same in other memory."""
SHARE = 0.1
"""A part takes at most its figure in so many of the steps: other processes disturb the others."""


def trainer_of(case: str, batch: int) -> Trainer:
    options = {**TRAINED[case], "batch_size": batch}
    return Trainer(Config(**options, allreduce="shared", epochs=1), comm=world())


def steps(case: str, batch: int) -> Callable[[int], object]:
    """Makes so many steps of a training without end."""
    made = endless(trainer_of(case, batch))
    return lambda n: [*islice(made, n)]


def timed(seconds: dict[str, float], part: str, f: Callable[..., Any]) -> Callable[..., Any]:
    """Adds up the seconds in f."""

    @wraps(f)
    def call(*args: Any) -> Any:
        began = time.perf_counter()
        try:
            return f(*args)
        finally:
            seconds[part] = seconds.get(part, 0.0) + time.perf_counter() - began

    return call


def parts(case: str, count: int) -> dict[str, float]:
    """Seconds of each part in a step, and of a step, as a mean over the ranks."""
    seconds: dict[str, float] = {}
    for part, (owner, name) in PARTS.items():
        setattr(owner, name, timed(seconds, part, getattr(owner, name)))
    made, rows = endless(trainer_of(case, TRAINED[case]["batch_size"])), list[list[float]]()
    next(made)
    for _ in range(count):
        seconds.clear()
        began = time.perf_counter()
        next(made)
        rows.append([*(seconds.get(p, 0.0) for p in PARTS), time.perf_counter() - began])
    found = ranks.mean(np.quantile(rows, SHARE, axis=0).tolist())
    return dict(zip((*PARTS, "step"), found, strict=True))


def main(what: str, *words: str) -> None:
    """Run on every rank of a job."""
    blas.tune()
    comm = world()
    if what == "serve":
        jobs.serve(Path(words[0]), comm.rank, comm.barrier, steps)
        return
    found = parts(words[0], int(words[1]))
    if comm.rank == 0:
        print(json.dumps(found), flush=True)

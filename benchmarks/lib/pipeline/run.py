"""The ranks of benchmarks/pipeline.py: those that wait for tasks, and those that count once.

    serve FOLDER    time tasks, as jobs.py says        bytes CASE...     sent in a step of each case
    profile MODEL   the cost of each unit of a model   network CASE...   seconds per step, by rounds
    memory CASE...  the peak memory of a step

All but `serve` answer with one line of JSON, of rank 0.
"""

import json
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from training import ONE_THREAD

import nnmpi
from lib import jobs
from lib.jobs import Process
from lib.pipeline.cases import Case, graph_of, models_of, steps_of, trainer_of
from lib.workloads import Steps
from nnmpi import backend, blas
from nnmpi.comm import Comm, world
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.pipeline.profile import Cost, profile

REPEATS = 20  # passes of a unit, of which the least time counts
COUNTED = 3  # steps whose bytes are counted
COMMAND = jobs.program(__name__)

# ---- in the process of the benchmark


def processes(ranks: int, folder: Path) -> list[Process]:
    """Ranks that wait for tasks."""
    return [jobs.mpirun(ranks, [*COMMAND, "serve", str(folder)], ONE_THREAD)]


def ask(ranks: int, question: Sequence[str], timeout: float) -> Any:
    """The answer of ranks that are started for it; raises JobError if they fail."""
    process = jobs.mpirun(ranks, [*COMMAND, *question], ONE_THREAD)
    return jobs.answer(process, question[0], timeout)


def measured_costs(model: str, small: bool, timeout: float) -> list[Cost]:
    """The profile of a model, of one micro-batch, by a process of its own."""
    rows = ask(1, ["profile", json.dumps([model, small])], timeout)
    return [Cost(*row) for row in rows]


# ---- on the ranks


def serve(folder: str) -> None:
    """Times tasks until the pipe is closed."""
    comm = world()

    def steps(case: str, batch: int) -> Callable[[int], None]:
        found = Case.of(case)._replace(batch=batch)
        return steps_of(found, trainer_of(found))

    jobs.serve(Path(folder), comm.rank, comm.barrier, steps)


def costs_of(text: str) -> list[Cost]:
    """The cost of each unit of a model."""
    blas.tune()
    name, small = json.loads(text)
    model = models_of(small)[name]
    draws = np.random.default_rng(0)
    x = draws.standard_normal((model.samples, *model.shape), dtype=np.float32)
    made, graph = graph_of(model)
    return profile(made, graph, units(graph), x, backend.get("cpu"), REPEATS)


def peak_memory(*texts: str) -> list[int]:
    """Bytes that a step of each case adds to parameters, gradients and data: the most at any time.

    Memory is traced from before the first step on, so that buffers that one step leaves to the
    next are counted. The samples of a batch are counted too; they are few.
    """
    found = []
    for case in map(Case.of, texts):
        run = steps_of(case, trainer_of(case))
        tracemalloc.start()
        run(2)
        tracemalloc.reset_peak()
        run(1)
        found.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    return found


def sent_bytes(*texts: str) -> list[int]:
    """The bytes that all ranks send in a step of each case, as their ledgers count them."""
    comm, found = world(), []
    for text in texts:
        trainer = trainer_of(Case.of(text), comm, "ring")
        run = steps_of(Case.of(text), trainer)
        run(1)
        comm.barrier()
        ledgers = [c.ledger for c in _comms(trainer)]
        before = sum(sum(ledger.sent_bytes) for ledger in ledgers)
        run(COUNTED)
        comm.barrier()
        sent = np.array([sum(sum(ledger.sent_bytes) for ledger in ledgers) - before])
        comm.all_reduce(sent)
        found.append(int(sent[0]) // COUNTED)
    return found


def _comms(trainer: nnmpi.Trainer) -> list[Comm]:
    """The communicators of a run, each once."""
    layout = trainer.strategy.layout
    comms = [layout.all, layout.model, *layout.axis.values()]
    return list({id(comm): comm for comm in comms if comm.size > 1}.values())


def seconds_per_step(rounds: str, seconds: str, *texts: str) -> list[list[float]]:
    """The times of each case in interleaved rounds, within this job."""
    comm = world()
    runs = [steps_of(case, trainer_of(case, comm)) for case in map(Case.of, texts)]
    return seconds_in_rounds(comm, runs, int(rounds), float(seconds))


def seconds_in_rounds(
    comm: Comm, runs: Sequence[Steps], rounds: int, seconds: float
) -> list[list[float]]:
    """Seconds per step of each, of about `seconds` in each round."""
    lengths = [max(1, round(seconds / _timed(comm, run, 1))) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, length, found in zip(runs, lengths, times, strict=True):
            found.append(_timed(comm, run, length))
    return times


def _timed(comm: Comm, run: Callable[[int], None], steps: int) -> float:
    """Seconds per step after a warm-up, measured on rank 0; the same on all ranks."""
    run(1)
    comm.barrier()
    start = time.perf_counter()
    run(steps)
    comm.barrier()
    taken = np.array([(time.perf_counter() - start) / steps])
    comm.broadcast(taken)
    return float(taken[0])


ANSWERS: dict[str, Callable[..., Any]] = {
    "profile": costs_of,
    "memory": peak_memory,
    "bytes": sent_bytes,
    "network": seconds_per_step,
}


def main(what: str, *words: str) -> None:
    """Serve tasks, or answer one question."""
    if what == "serve":
        serve(*words)
        return
    found = ANSWERS[what](*words)
    if world().rank == 0:
        print(json.dumps(found), flush=True)

"""The ranks of benchmarks/pipeline.py and sharding.py: those that wait for tasks, or count once.

    serve FOLDER              time tasks, as jobs.py says
    rounds N SECONDS CASE...  seconds per step of each case, in N interleaved rounds
    profile CASE...           the cost of each unit of the model, in one micro-batch
    peak CASE...              the peak memory of a step
    memory CASE...            bytes that a rank holds, and the most in a step
    bytes CASE...             bytes and messages that a rank sends in a step, without shared memory

All but `serve` answer with one line of JSON, of rank 0. The last two are means over the ranks of
what is measured, and of what the arrangement of the run says.
"""

import gc
import json
import time
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import nnmpi
from lib import jobs
from lib.jobs import Process
from lib.runs import Case, Model
from lib.workloads import Steps
from nnmpi import nn
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.paper.rank import memory, traffic
from nnmpi.arrays import backend, blas
from nnmpi.comm import Comm, world
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.calls import FreedObject
from nnmpi.comm.transport.base import Ledger, SharedWindow
from nnmpi.comm.transport.mpi import MPITransport
from nnmpi.nn.graph import Graph
from nnmpi.nn.store import FlatStore
from nnmpi.nn.tracing import trace
from nnmpi.parallel.arrangement.partition import units
from nnmpi.parallel.unit_costs import UnitCost, profile

REPEATS = 20  # passes of a unit, of which the least time counts
COUNTED = 2  # steps whose bytes are counted


class Memory(NamedTuple):
    """Bytes on one rank; what a node shares is counted once a node, on its first rank."""

    parameters: float  # as the store counts them, like gradients and slots
    gradients: float
    state: float
    slots: float
    messages: float  # buffers that communicators keep
    windows: float  # allocated from MPI
    between: float  # traced by tracemalloc between two steps, and the windows
    kept: float  # of that, slots and buffers of messages
    peak: float  # the most in a step, and the windows
    resident: float  # PSS between two steps, without that before the trainer was made


class MemorySaid(NamedTuple):
    """Bytes on one rank as its arrangement says."""

    held: float  # parameters, gradients, optimizer state, and windows
    slots: float
    activations: float  # the most at a time in a step


class Traffic(NamedTuple):
    """What one rank sends in a step."""

    bytes: float
    messages: float


def graph_of(model: Model) -> tuple[nn.Module, Graph]:
    """The model, and what it computes of its samples."""

    def samples(n: int) -> tuple[tuple[nnmpi.Tensor], dict[str, nnmpi.Tensor]]:
        return (nnmpi.tensor(np.zeros((n, *model.shape), np.float32)),), {}

    made = model.build()
    return made, trace(made, samples, "float32")


# ---- in the process of the benchmark


def processes(module: str, ranks: int, folder: Path) -> list[Process]:
    """Ranks that wait for tasks."""
    return [jobs.mpirun(ranks, [*jobs.program(module), "serve", str(folder)])]


def ask(module: str, ranks: int, question: Sequence[str], timeout: float) -> Any:
    """The answer of ranks that are started for it; raises JobError if they fail."""
    process = jobs.mpirun(ranks, [*jobs.program(module), *question])
    return jobs.answer(process, question[0], timeout)


def over_network(
    module: str, ranks: int, rate: float, words: Sequence[str], timeout: float
) -> list[list[float]]:
    """Seconds per step of each case in rounds, one rank a host of an emulated cluster.

    `rate` is that of each link, in bits per second each way. Raises JobError where there is no
    cluster.
    """
    jobs.cluster(["up", "--hosts", str(ranks), "--rate", f"{rate / 1e6:g}mbit"], timeout)
    try:
        command = ["run", "-n", str(ranks), "--", *jobs.program(module), "rounds", *words]
        out = jobs.cluster(command, timeout)
    finally:
        jobs.cluster(["down"], timeout)
    found: list[list[float]] = json.loads(out.splitlines()[-1])
    return found


# ---- on the ranks


def answer(
    answers: Mapping[str, Callable[[str], Any]],
    steps: Callable[[str, int | None], Steps],
    what: str,
    *words: str,
) -> None:
    """Serve tasks, or answer one question.

    steps: maps the text of a case, and the samples of a step if they are others, to its steps
    """
    comm = world()
    if what == "serve":
        jobs.serve(Path(words[0]), comm.rank, comm.barrier, steps)
        return
    if what == "rounds":
        rounds, seconds, *texts = words
        runs = [steps(text, None) for text in texts]
        found = seconds_in_rounds(comm, runs, int(rounds), float(seconds))
    else:
        found = [answers[what](text) for text in words]
    if comm.rank == 0:
        print(json.dumps(found), flush=True)


def seconds_in_rounds(
    comm: Comm, runs: Sequence[Steps], rounds: int, seconds: float
) -> list[list[float]]:
    """Seconds per step of each, of about `seconds` in each round."""
    lengths = [max(1, round(seconds / seconds_per_step(comm, run, 1))) for run in runs]
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds):
        for run, length, found in zip(runs, lengths, times, strict=True):
            found.append(seconds_per_step(comm, run, length))
    return times


def seconds_per_step(comm: Comm, run: Steps, steps: int) -> float:
    """Seconds per step after a warm-up, measured on rank 0; the same on all ranks."""
    run(1)
    comm.barrier()
    start = time.perf_counter()
    run(steps)
    comm.barrier()
    taken = np.array([(time.perf_counter() - start) / steps])
    comm.broadcast(taken)
    return float(taken[0])


def mean(figures: Sequence[float]) -> list[float]:
    """The mean over the ranks of each figure."""
    comm, total = world(), np.array(figures, np.float64)
    comm.all_reduce(total, "doubling")
    found: list[float] = (total / comm.size).tolist()
    return found


def costs_of(text: str) -> list[UnitCost]:
    """The cost of each unit of a model, in one micro-batch."""
    blas.tune()
    model = Case.of(text).built
    draws = np.random.default_rng(0)
    x = draws.standard_normal((model.samples, *model.shape), dtype=np.float32)
    made, graph = graph_of(model)
    return profile(made, graph, units(graph), x, backend.get("cpu"), REPEATS)


def peak_memory(text: str) -> int:
    """Bytes that a step adds to parameters, gradients and data: the most at any time.

    Memory is traced from before the first step on, so that buffers that one step leaves to the
    next are counted. The samples of a batch are counted too; they are few.
    """
    case = Case.of(text)
    run = case.steps(case.trainer())
    tracemalloc.start()
    peak = peak_of_step(run)
    tracemalloc.stop()
    return peak


def peak_of_step(run: Steps) -> int:
    """The most traced memory in a step, after two others."""
    run(2)
    tracemalloc.reset_peak()
    run(1)
    return tracemalloc.get_traced_memory()[1]


def held(text: str) -> tuple[Memory, MemorySaid]:
    """The memory of a case. Tracing begins before its trainer is made."""
    with windows() as sizes:
        gc.collect()
        before, pages = _message_buffers(), resident()
        tracemalloc.start()
        trainer = Case.of(text).trainer()
        run = Case.of(text).steps(trainer)
        run(2)
        gc.collect()
        pages = resident() - pages
        store, shared = trainer.optimizer.parameters[0].store, sum(sizes)
        assert isinstance(store, FlatStore)
        between = tracemalloc.get_traced_memory()[0]
        kept = store.slot_bytes() + _message_buffers() - before
        tracemalloc.reset_peak()
        run(1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found = Memory(
            store.parameter_bytes(),
            store.gradient_bytes(),
            sum(a.nbytes for a in trainer.optimizer.state.values()),
            store.slot_bytes(),
            _message_buffers() - before,
            shared,
            between + shared,
            kept,
            peak + shared,
            pages,
        )
        said = memory_said(trainer)
        trainer.close()
    return Memory(*mean(found)), MemorySaid(*mean(said))


def memory_said(trainer: nnmpi.Trainer) -> MemorySaid:
    """What the arrangement of a trainer says that this rank holds."""
    a, rank, batch = trainer.arrangement, trainer.comm.rank, trainer.config.batch_size
    found = memory(a, rank, batch)
    return MemorySaid(found.total - found.slots, found.slots, activations(a, rank, batch))


def resident() -> int:
    """The pages of this process, each divided among the processes that have it (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _message_buffers() -> int:
    """The memory in which collectives receive what they add to an array."""
    made = [found for found in gc.get_objects() if isinstance(found, Interpreter)]
    return sum(a.nbytes for one in made for kept in one._free.values() for a in kept)


@contextmanager
def windows() -> Iterator[list[int]]:
    """The sizes of this rank's segments of the windows that exist."""
    sizes: list[int] = []
    allocate = MPITransport.window

    def counted(self: MPITransport, nbytes: int) -> SharedWindow:
        window = allocate(self, nbytes)
        sizes.append(nbytes)

        def free() -> None:
            window.free()
            sizes.remove(nbytes)

        return window._replace(free=free)

    with _replaced("window", counted):
        yield sizes


@contextmanager
def no_shared_memory() -> Iterator[None]:
    """All sums go by messages, as between nodes, so that ledgers count them."""
    with _replaced("free_memory", lambda self: 0):
        yield


@contextmanager
def _replaced(name: str, method: Callable[..., Any]) -> Iterator[None]:
    """Another method in MPITransport for a while."""
    original = getattr(MPITransport, name)
    setattr(MPITransport, name, method)
    try:
        yield
    finally:
        setattr(MPITransport, name, original)


def sent(text: str) -> tuple[Traffic, Traffic]:
    """What a step of a case sends, by the ledgers of all communicators of this rank."""
    with no_shared_memory():
        trainer = Case.of(text).trainer()
        counted = sent_by(Case.of(text).steps(trainer))
        said = traffic(trainer.arrangement, trainer.comm.rank, trainer.config.batch_size).values()
        total = [sum(one.bytes for one in said), sum(one.messages for one in said)]
        return counted, Traffic(*mean(total))


def sent_by(run: Steps) -> Traffic:
    """What a step sends."""
    run(1)
    gc.collect()
    comms = [found for found in gc.get_objects() if isinstance(found, Comm)]
    there = [comm for comm in comms if not isinstance(comm._transport, FreedObject)]
    ledgers = {id(comm.ledger): comm.ledger for comm in there}.values()
    before = _counts(ledgers)
    run(COUNTED)
    after = _counts(ledgers)
    return Traffic(*mean([(b - a) / COUNTED for a, b in zip(before, after, strict=True)]))


def _counts(ledgers: Iterable[Ledger]) -> Traffic:
    return Traffic(
        sum(sum(ledger.sent_bytes) for ledger in ledgers),
        sum(sum(ledger.sent_messages) for ledger in ledgers),
    )


ANSWERS = {"profile": costs_of, "peak": peak_memory, "memory": held, "bytes": sent}


def _steps(text: str, batch: int | None) -> Steps:
    case = Case.of(text) if batch is None else Case.of(text)._replace(batch=batch)
    return case.steps(case.trainer())


def main(*words: str) -> None:
    """Serve tasks, or answer one question."""
    answer(ANSWERS, _steps, *words)

"""The ranks of benchmarks/sharding.py that train: those that wait for tasks, or count once.

    serve FOLDER     time tasks, as jobs.py says
    memory CASE...   bytes that a rank holds, and the most in a step
    bytes CASE...    bytes and messages that a rank sends in a step, without shared memory

The last two answer with one line of JSON, of rank 0: means over the ranks of what is measured, and
of what the arrangement of the run says.
"""

import gc
import json
import tracemalloc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from training import ONE_THREAD

import nnmpi
from lib import jobs
from lib.jobs import Process
from lib.sharding.cases import Case
from lib.workloads import trainer_steps
from nnmpi.comm import Comm, world
from nnmpi.comm.allreduce.interpreter import Interpreter
from nnmpi.comm.transport.base import Ledger, Window
from nnmpi.comm.transport.mpi import MPITransport
from nnmpi.nn.store import FlatStore
from nnmpi.parallel.arrangement.activations import activations
from nnmpi.parallel.arrangement.memory import memory
from nnmpi.parallel.arrangement.traffic import traffic

COUNTED = 2  # steps whose bytes are counted
COMMAND = jobs.program(__name__)


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


class MemorySaid(NamedTuple):
    """Bytes on one rank as its arrangement says."""

    held: float  # parameters, gradients, running sums, and windows
    slots: float
    activations: float  # the most at a time in a step


class Sent(NamedTuple):
    """What one rank sends in a step."""

    bytes: float
    messages: float


# ---- in the process of the benchmark


def processes(ranks: int, folder: Path) -> list[Process]:
    """Ranks that wait for tasks."""
    return [jobs.mpirun(ranks, [*COMMAND, "serve", str(folder)], ONE_THREAD)]


def ask_memory(cases: Sequence[Case], timeout: float) -> list[tuple[Memory, MemorySaid]]:
    """What a rank holds in cases that have equal numbers of ranks: measured, and said."""
    found = _answers("memory", cases, timeout)
    return [(Memory(*measured), MemorySaid(*said)) for measured, said in found]


def ask_bytes(cases: Sequence[Case], timeout: float) -> list[tuple[Sent, Sent]]:
    """What a rank sends in cases that have equal numbers of ranks: counted, and said."""
    found = _answers("bytes", cases, timeout)
    return [(Sent(*counted), Sent(*said)) for counted, said in found]


def _answers(what: str, cases: Sequence[Case], timeout: float) -> list[list[list[float]]]:
    command = [*COMMAND, what, *(case.text for case in cases)]
    found: list[list[list[float]]] = jobs.answer(
        jobs.mpirun(cases[0].ranks, command, ONE_THREAD), what, timeout
    )
    return found


# ---- on the ranks


def serve(folder: str) -> None:
    """Times tasks until the pipe is closed."""
    comm = world()
    jobs.serve(
        Path(folder),
        comm.rank,
        comm.barrier,
        lambda case, batch: trainer_steps(Case.of(case)._replace(batch=batch).trainer()),
    )


def mean(figures: Sequence[float]) -> list[float]:
    """The mean over the ranks of each figure."""
    comm, total = world(), np.array(figures, np.float64)
    comm.all_reduce(total, "doubling")
    found: list[float] = (total / comm.size).tolist()
    return found


def held(text: str) -> tuple[Memory, MemorySaid]:
    """The memory of a case. Tracing begins before its trainer is made."""
    with windows() as sizes:
        gc.collect()
        before = _message_buffers()
        tracemalloc.start()
        trainer = Case.of(text).trainer()
        run = trainer_steps(trainer)
        run(2)
        gc.collect()
        store, shared = _store(trainer.optimizer.parameters[0].store), sum(sizes)
        between = tracemalloc.get_traced_memory()[0]
        kept = store.slot_bytes() + _message_buffers() - before
        tracemalloc.reset_peak()
        run(1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        found = Memory(
            store.parameter_bytes(),
            store.gradient_bytes(),
            sum(a.nbytes for a in trainer.optimizer.state),
            store.slot_bytes(),
            _message_buffers() - before,
            shared,
            between + shared,
            kept,
            peak + shared,
        )
        said = memory_said(trainer)
        trainer.close()
    return Memory(*mean(found)), MemorySaid(*mean(said))


def memory_said(trainer: nnmpi.Trainer) -> MemorySaid:
    """What the arrangement of a trainer says that this rank holds."""
    a, rank, batch = trainer.arrangement, trainer.comm.rank, trainer.config.batch_size
    found = memory(a, rank, batch)
    return MemorySaid(found.total - found.slots, found.slots, activations(a, rank, batch))


def _store(store: object) -> FlatStore:
    assert isinstance(store, FlatStore)
    return store


def _message_buffers() -> int:
    """The memory in which collectives receive what they add to an array."""
    made = [found for found in gc.get_objects() if isinstance(found, Interpreter)]
    return sum(a.nbytes for one in made for kept in one._free.values() for a in kept)


@contextmanager
def windows() -> Iterator[list[int]]:
    """The sizes of this rank's segments of the windows that exist."""
    sizes: list[int] = []
    allocate = MPITransport.window

    def counted(self: MPITransport, nbytes: int) -> Window:
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


def sent(text: str) -> tuple[Sent, Sent]:
    """What a step of a case sends, by the ledgers of all communicators of this rank."""
    with no_shared_memory():
        trainer = Case.of(text).trainer()
        return sent_by(trainer_steps(trainer)), Sent(*mean(sent_said(trainer)))


def sent_said(trainer: nnmpi.Trainer) -> Sent:
    """What the arrangement of a trainer says that this rank sends in a step, along all axes."""
    found = traffic(trainer.arrangement, trainer.comm.rank, trainer.config.batch_size)
    return Sent(sum(one.bytes for one in found), sum(one.messages for one in found))


def sent_by(run: Callable[[int], object]) -> Sent:
    """What a step sends."""
    run(1)
    gc.collect()
    comms = [found for found in gc.get_objects() if isinstance(found, Comm)]
    ledgers = {id(comm.ledger): comm.ledger for comm in comms}.values()
    before = _counts(ledgers)
    run(COUNTED)
    after = _counts(ledgers)
    return Sent(*mean([(b - a) / COUNTED for a, b in zip(before, after, strict=True)]))


def _counts(ledgers: Iterable[Ledger]) -> Sent:
    return Sent(
        sum(sum(ledger.sent_bytes) for ledger in ledgers),
        sum(sum(ledger.sent_messages) for ledger in ledgers),
    )


ANSWERS: dict[str, Callable[[str], Any]] = {"memory": held, "bytes": sent}


def main(what: str, *words: str) -> None:
    """Serve tasks, or answer one question."""
    if what == "serve":
        serve(*words)
        return
    found = [ANSWERS[what](text) for text in words]
    if world().rank == 0:
        print(json.dumps(found), flush=True)

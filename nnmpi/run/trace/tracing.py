"""Tracer: what the trainer knows of --trace; the events of all ranks, on the first one's clock.

How far clocks are apart is estimated from messages that go to and fro:

rank 0      t0 ──────► ──────── t1       offset = t - (t0 + t1) / 2
rank r            t ─┘                   of the fastest round trip; the error is at most half of it
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from nnmpi.comm import Comm, OtherRankError
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.mesh import Mesh
from nnmpi.parallel.recorder import NO_RECORDER
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.trace.chrome import RankWorks, write
from nnmpi.run.trace.recording import CAPACITY, Recording
from nnmpi.run.trace.summary import bubble, facts, traced

ROUNDS = 20


class Tracer:
    """Records a run if the config asks for it, and says at its end what was recorded.

    Every rank makes one; the clocks of ranks are compared then.
    """

    def __init__(
        self,
        config: Config,
        comm: Comm,
        now: Callable[[], float] = time.perf_counter,
        capacity: int = CAPACITY,
    ) -> None:
        self._config, self._comm = config, comm
        self._recording = Recording(now, capacity) if config.trace else None
        self.recorder = self._recording or NO_RECORDER
        self._offsets = offsets(comm, now) if config.trace else np.zeros(comm.size)

    def of_run(self) -> AbstractContextManager[None]:
        """The context of all steps of a run, in which works and memory are recorded too."""
        return self._recording.of_run(self._comm) if self._recording else nullcontext()

    def outcome(self, mesh: Mesh) -> dict[str, Any]:
        """Writes the file; returns what the last event says of it. Every rank calls it."""
        if self._recording is None:
            return {}
        gathered, works = gather(self._comm, self._recording, self._offsets)
        try:
            return all_or_none(self._comm, lambda: self._written(gathered, works, mesh))
        except OtherRankError as error:
            raise AgreedError(str(error)) from None

    def _written(
        self, gathered: Sequence[np.ndarray], works: Sequence[RankWorks], mesh: Mesh
    ) -> dict[str, Any]:
        """On the first rank, which alone has events; the others know nothing."""
        path = self._config.trace
        if not gathered or path is None:
            return {}
        table = traced(gathered, mesh)
        of_pipelines, simulated = bubble(table, mesh, self._config)
        known = {"file": path, **facts(table), **of_pipelines}
        try:
            write(path, table, works, mesh, {**known, "simulated": simulated})
        except OSError as error:
            raise AgreedError(
                f"cannot write trace {path}: {error.strerror or error}; the run itself is "
                "complete: name another file"
            ) from None
        return {"trace": known}


def offsets(comm: Comm, now: Callable[[], float]) -> np.ndarray:
    """On rank 0, how far the clock of each rank is ahead of its own; every rank calls it.

    Clocks of several hosts have any start. They also drift, by up to some microseconds a second,
    which is not corrected.
    """
    found, message = np.zeros(comm.size), np.zeros(1)
    if comm.rank == 0:
        for other in range(1, comm.size):
            found[other] = min(_asked(comm, other, now) for _ in range(ROUNDS))[1]
        return found
    for _ in range(ROUNDS):
        comm.irecv(message, 0).wait()
        message[0] = now()
        comm.isend(message, 0).wait()
    return found


def _asked(comm: Comm, other: int, now: Callable[[], float]) -> tuple[float, float]:
    """The time of a round trip, and how far the other clock is ahead."""
    theirs, began = np.zeros(1), now()
    comm.isend(theirs, other).wait()
    comm.irecv(theirs, other).wait()
    ended = now()
    return ended - began, theirs[0] - (began + ended) / 2


def gather(
    comm: Comm, recording: Recording, offsets: np.ndarray
) -> tuple[list[np.ndarray], list[RankWorks]]:
    """The events and works of the steps that all ranks have recorded; other ranks get empty lists.

    Every rank calls it.
    """
    works = recording.works
    operations = [(o.operation, o.algorithm, o.bytes) for o in works.operations]
    told = gather_objects(comm, (recording.limit, operations))
    limit = min(limit for limit, _ in told)
    events = _on_first(comm, recording.events(limit), offsets)
    rows = _on_first(comm, works.ended(limit), offsets)
    return events, [RankWorks(own, told[rank][1]) for rank, own in enumerate(rows)]


def _on_first(comm: Comm, own: np.ndarray, offsets: np.ndarray) -> list[np.ndarray]:
    """On rank 0, the rows of each rank, on its clock."""
    counts = np.zeros((comm.size, 1), np.int64)
    counts[comm.rank] = len(own)
    comm.all_gather(counts)
    if comm.rank:
        comm.isend(own.view(np.uint8), 0).wait()
        return []
    gathered = [own.copy()]
    for rank in range(1, comm.size):
        theirs = np.empty(int(counts[rank, 0]), own.dtype)
        comm.irecv(theirs.view(np.uint8), rank).wait()
        gathered.append(theirs)
    for rows, offset in zip(gathered, offsets.tolist(), strict=True):
        rows["began"] -= offset
        rows["ended"] -= offset
    return gathered

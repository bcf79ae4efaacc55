"""The trainer's interface to --trace: records what each rank does (operations, messages and waits,
with times), and converts the times to the clock of rank 0.

The difference of clocks is estimated from messages to a rank and back:

rank 0      t0 ──────► ──────── t1       offset = t - (t0 + t1) / 2
rank r            t ─┘                   of the fastest round trip; the error is at most half of it
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from nnmpi.addons.trace.chrome import write
from nnmpi.addons.trace.recording import RankEntries, Recording
from nnmpi.addons.trace.summary import bubble, facts, traced
from nnmpi.comm import Comm, OtherRankError
from nnmpi.options.config import Config
from nnmpi.parallel.agreement import all_or_none, gather_objects, receive_object, send_object
from nnmpi.parallel.mesh import Mesh
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.training import RunParts, Tracer

ROUNDS = 20


class RunTracer(Tracer):
    """Records the operations of this rank for --trace, and writes and summarizes the trace of all
    ranks at the end of the run.

    Every rank creates one at the same time, since the clocks of ranks are compared then.
    """

    recorder: Recording

    def __init__(self, config: Config, comm: Comm) -> None:
        self._config, self._comm, self.recorder = config, comm, Recording()
        self._offsets = offsets(comm, self.recorder.now)

    def of_run(self) -> AbstractContextManager[None]:
        """Returns a context for all steps of a run, which also records Works and memory."""
        return self.recorder.of_run(self._comm)

    def outcome(self, mesh: Mesh) -> dict[str, Any]:
        """Writes the trace file, and returns its summary for the run's last event; every rank calls
        it."""
        gathered = gather(self._comm, self.recorder, self._offsets)
        try:
            return all_or_none(self._comm, lambda: self._written(gathered, mesh))
        except OtherRankError as error:
            raise AgreedError(str(error)) from None

    def _written(self, gathered: Sequence[RankEntries], mesh: Mesh) -> dict[str, Any]:
        """Writes the trace file on rank 0, from all ranks' records, and returns its summary; {}
        elsewhere."""
        path = self._config.trace
        if not gathered or path is None:
            return {}
        table = traced([entries.events for entries in gathered], mesh)
        of_pipelines, simulated = bubble(table, mesh, self._config)
        outcome = {"file": path, **facts(table), **of_pipelines}
        try:
            write(path, table, gathered, mesh, {**outcome, "simulated": simulated})
        except OSError as error:
            raise AgreedError(
                f"cannot write trace {path}: {error.strerror or error}; the run itself is "
                "complete; name another file"
            ) from None
        return {"trace": outcome}


def offsets(comm: Comm, clock: Callable[[], float]) -> np.ndarray:
    """Returns on rank 0 the seconds by which each rank's clock is ahead of its own; every rank
    calls it. The drift of clocks, up to some microseconds per second, is not corrected."""
    ahead, message = np.zeros(comm.size), np.zeros(1)
    if comm.rank == 0:
        for other in range(1, comm.size):
            # of the fastest round trip, whose error is smallest
            ahead[other] = min(_round_trip(comm, other, clock) for _ in range(ROUNDS))[1]
        return ahead
    for _ in range(ROUNDS):
        comm.irecv(message, 0).wait()
        message[0] = clock()
        comm.isend(message, 0).wait()
    return ahead


def _round_trip(comm: Comm, other: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Measures a message to rank `other` and back: its seconds, and how far that rank's clock is
    ahead."""
    theirs, began = np.zeros(1), clock()
    comm.isend(theirs, other).wait()
    comm.irecv(theirs, other).wait()
    ended = clock()
    return ended - began, theirs[0] - (began + ended) / 2


def gather(comm: Comm, recording: Recording, offsets: np.ndarray) -> list[RankEntries]:
    """Returns on rank 0 the records of all ranks, on its clock, of the steps that all have
    recorded; returns [] on other ranks. Every rank calls it."""
    of_ranks = gather_objects(comm, (recording.limit, recording.operations))
    entries = recording.rows(min(limit for limit, _ in of_ranks))
    if comm.rank:
        send_object(comm, entries, 0)
        return []
    gathered = [entries, *(receive_object(comm, rank) for rank in range(1, comm.size))]
    for rows, offset in zip(gathered, offsets.tolist(), strict=True):
        rows["began"] -= offset
        rows["ended"] -= offset
    pairs = zip(gathered, of_ranks, strict=True)
    return [RankEntries.of(rows, operations) for rows, (_, operations) in pairs]


PARTS = RunParts(tracer=RunTracer)

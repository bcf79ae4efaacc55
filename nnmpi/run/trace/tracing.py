"""Tracer: what the trainer knows of --trace."""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from nnmpi.comm import Comm
from nnmpi.config import Config
from nnmpi.mesh import Mesh
from nnmpi.parallel.agreement import all_or_none
from nnmpi.parallel.recorder import NO_RECORDER, Recorder
from nnmpi.parallel.strategy import AgreedError
from nnmpi.run.trace.chrome import write
from nnmpi.run.trace.gather import gather, offsets
from nnmpi.run.trace.recording import CAPACITY, Recording
from nnmpi.run.trace.summary import bubble, facts
from nnmpi.run.trace.waits import traced


class TraceNotWrittenError(AgreedError):
    """The file of --trace could not be written; all ranks know it."""


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
        self._offsets = offsets(comm, now) if config.trace else np.zeros(comm.size)

    @property
    def recorder(self) -> Recorder:
        """Takes what strategies do."""
        return self._recording or NO_RECORDER

    def evaluation(self) -> AbstractContextManager[None]:
        """Around an evaluation, which is no part of a step."""
        return self._recording.evaluation() if self._recording else nullcontext()

    def outcome(self, mesh: Mesh) -> dict[str, Any]:
        """Writes the file; returns what the last event says of it. Every rank calls it."""
        if self._recording is None:
            return {}
        gathered = gather(self._comm, self._recording, self._offsets)
        return all_or_none(self._comm, lambda: self._written(gathered, mesh))

    def _written(self, gathered: Sequence[np.ndarray], mesh: Mesh) -> dict[str, Any]:
        """On the first rank, which alone has events; the others know nothing."""
        path = self._config.trace
        if not gathered or path is None:
            return {}
        table = traced(gathered, mesh)
        idle = bubble(table, mesh, self._config)
        known = {"file": path, **facts(table), **({"bubble": idle._asdict()} if idle else {})}
        try:
            write(path, table, mesh, len(gathered), known)
        except OSError as error:
            raise TraceNotWrittenError(
                f"cannot write trace {path}: {error.strerror or error}; the run itself is "
                "complete: name another file"
            ) from None
        return {"trace": known}

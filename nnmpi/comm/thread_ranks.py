"""Ranks as threads of this process, without mpirun; and a communicator of one rank."""

import contextvars
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from nnmpi.comm.call_log import CallLog, DebugSettings
from nnmpi.comm.communicator import Comm
from nnmpi.comm.debug import watchdog
from nnmpi.comm.progress import Progress
from nnmpi.comm.transport.base import AbortedError, OtherRankError
from nnmpi.comm.transport.threads import Hub, ThreadTransport

T = TypeVar("T")


def run(
    size: int,
    f: Callable[..., T],
    *arguments: Any,
    per_node: int | None = None,
    free_memory: int = 1 << 62,
) -> list[T]:
    """Calls f(comm, *arguments) on every rank, and returns the results in the order of the ranks.

    If a rank raises, the others stop waiting, and its error is raised here. To emulate nodes, only
    `per_node` ranks in a row share memory, of which each node has `free_memory` bytes.
    """
    hub, results, errors = Hub(size, per_node or size, free_memory), {}, {}
    settings = DebugSettings.of(os.environ)
    ranks = [Progress(CallLog(settings)) for _ in range(size)]

    def main(rank: int) -> None:
        try:
            comm = Comm(ThreadTransport(hub, range(size), rank, "world"), progress=ranks[rank])
            results[rank] = f(comm, *arguments)
        except BaseException as error:
            errors[rank] = error
            hub.abort(f"rank {rank} raised {type(error).__name__}: {error}")
        finally:
            hub.leave(rank)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(main, rank), daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    watchdog.join(threads, ranks, hub.abort)
    # first the ranks that failed themselves, then those that end because of them
    secondary = (AbortedError, OtherRankError)
    for _, error in sorted(errors.items(), key=lambda e: (isinstance(e[1], secondary), e[0])):
        raise error
    return [results[rank] for rank in range(size)]


def comm_self() -> Comm:
    """A communicator of this rank alone, without MPI."""
    return Comm(ThreadTransport(Hub(1, 1), range(1), 0, "world"))

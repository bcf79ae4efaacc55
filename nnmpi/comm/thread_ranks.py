"""Ranks as threads of this process, without mpirun, and a communicator of one rank."""

import contextvars
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from nnmpi.comm.call_log import CallLog, DebugSettings
from nnmpi.comm.communicator import Comm
from nnmpi.comm.debug.compare import mismatch
from nnmpi.comm.progress import Progress
from nnmpi.comm.transport.base import AbortedError, OtherRankError, RankLost
from nnmpi.comm.transport.hub import Hub
from nnmpi.comm.transport.scheduler import Scheduler
from nnmpi.comm.transport.threads import ThreadFamily, ThreadTransport

T = TypeVar("T")


def run(
    size: int,
    f: Callable[..., T],
    *arguments: Any,
    per_node: int | None = None,
    free_memory: int = 1 << 62,
    fault_tolerant: bool = False,
    killed: Mapping[int, int] | None = None,
    scheduler: Scheduler | None = None,
) -> list[T]:
    """Calls f(comm, *arguments) on `size` threads as ranks; returns the results in rank order.

    If a rank raises, the others stop waiting, and its error is raised by this call. To emulate
    nodes, only `per_node` consecutive ranks share memory, `free_memory` bytes on each node.

    `killed` maps a rank to the number, from 1, of the operation at which it is lost; each post,
    join, wait and test of a message or collective counts as one. If the job is `fault_tolerant`,
    the others then get RankLost, and the result of a lost rank is None. A `scheduler` decides
    when ranks run, when messages arrive and when losses are noticed; tests replay runs with it.
    """
    from nnmpi.comm.debug.waiting_ranks import join  # `comm_self` does not need it

    hub = Hub(size, per_node or size, free_memory, fault_tolerant, killed, scheduler)
    results, errors = dict[int, Any](), dict[int, BaseException]()
    settings = DebugSettings.of(os.environ)
    ranks = [Progress(CallLog(settings)) for _ in range(size)]
    hub.explain = lambda: mismatch({r: p for r, p in enumerate(ranks) if hub.is_running(r)})

    def main(rank: int) -> None:
        try:
            hub.enter(rank)
            comm = Comm(ThreadFamily(hub, rank, range(size)).first(), progress=ranks[rank])
            results[rank] = f(comm, *arguments)
        except BaseException as error:
            if not (fault_tolerant and hub.is_lost(rank)):
                errors[rank] = error
                hub.abort(f"rank {rank} raised {type(error).__name__}: {error}")
        finally:
            if hub.is_lost(rank):
                results[rank] = None
            hub.end(rank)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(main, rank), daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    join(threads, ranks, hub)
    # raise the cause: ranks that failed by themselves sort before ranks that failed because of them
    secondary = (AbortedError, OtherRankError, RankLost)
    for _, error in sorted(errors.items(), key=lambda e: (isinstance(e[1], secondary), e[0])):
        raise error
    return [results[rank] for rank in range(size)]


def kill(comm: Comm) -> NoReturn:
    """Ends the calling rank as SIGKILL ends a process, for tests of how the others react."""
    assert isinstance(comm._p2p, ThreadTransport)
    comm._p2p.die()


def comm_self() -> Comm:
    """Returns a communicator of one rank, without MPI."""
    return Comm(ThreadFamily(Hub(1, 1), 0, range(1)).first())

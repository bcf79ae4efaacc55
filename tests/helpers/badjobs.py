"""Mistakes of ranks, one function each: mpirun -n N python tests/helpers/badjobs.py NAME."""

import atexit
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from nnmpi.comm import Comm, call_log, mpi_ranks, world
from nnmpi.comm.debug import exit_hooks, watchdog

MINUTE = 60.0
"""Seconds for what takes none, however busy the machine is."""


def ones(n: int = 10, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(n, dtype)


def clean(comm: Comm) -> None:
    """No mistake: the ranks end at different times."""
    comm.all_reduce(ones(), "ring")
    time.sleep(0.4 * comm.rank)


def finalize(comm: Comm) -> None:
    """No mistake: the user ends MPI."""
    from mpi4py import MPI

    comm.barrier()
    MPI.Finalize()


def unguarded(comm: Comm) -> None:
    """No mistake, in a world without guard."""
    threads = [t.name for t in threading.enumerate()]
    hooks = (sys.excepthook, threading.excepthook)
    assert hooks == (sys.__excepthook__, threading.__excepthook__)
    assert threads == ["MainThread"]
    assert world() is comm
    keeps_exit(comm)


def keeps_exit(comm: Comm) -> None:
    """No mistake: sys.exit is Python's own."""
    assert type(sys.exit) is type(len)
    comm.all_reduce(ones(), "ring")


def raises(comm: Comm) -> None:
    if comm.rank == 1:
        raise ValueError("no such thing")
    comm.barrier()


def all_raise(comm: Comm) -> None:
    watchdog.TIME_TO_FAIL = exit_hooks.TIME_TO_BE_ENDED = MINUTE
    comm.barrier()
    if comm.rank == 2:
        raise KeyError("another thing")
    raise ValueError("no such thing")


def one_raises_for_all(comm: Comm) -> None:
    exit_hooks.TIME_TO_BE_ENDED = MINUTE
    comm.agree(ValueError("no such thing") if comm.rank == 1 else None)


def raises_in_a_thread(comm: Comm) -> None:
    if comm.rank == 1:
        threading.Thread(target=lambda: ones().reshape(3)).start()
    comm.barrier()


def interrupted(comm: Comm) -> None:
    if comm.rank == 1:
        raise KeyboardInterrupt
    comm.barrier()


def interrupted_at_its_end(comm: Comm) -> None:
    """Rank 0 waits for rank 1, and nothing of this file runs any more."""
    if comm.rank == 0:
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0.2)
        signal.signal(signal.SIGALRM, signal.default_int_handler)
    else:
        time.sleep(2)


@contextmanager
def interrupted_start(_: float) -> Iterator[None]:
    """Ctrl-C comes while MPI starts: Python hears of it when that is over."""
    yield
    signal.raise_signal(signal.SIGINT)


def aborts(comm: Comm) -> None:
    if comm.rank == 1:
        comm.abort("this goes nowhere")
    comm.barrier()


def all_abort(comm: Comm) -> None:
    comm.barrier()
    time.sleep(0.03 * comm.rank)  # signals that come at once are one
    comm.abort("this goes nowhere")


def leaves(comm: Comm) -> None:
    comm.all_reduce(ones(), "ring")
    if comm.rank == 1:
        sys.exit(0)
    comm.all_reduce(ones(), "ring")


def leaves_short_sums(comm: Comm) -> None:
    for _ in range(50 if comm.rank == 1 else 51):
        comm.all_reduce(ones(), "shared")


def leaves_before_it_sends(comm: Comm) -> None:
    if comm.rank == 0:
        comm.irecv(ones(), 1).wait()


def leaves_before_it_is_through(comm: Comm) -> None:
    work = comm.start(ones(), "ring")
    if comm.rank != 1:
        work.wait()


def fails(comm: Comm) -> None:
    if comm.rank == 1:
        sys.exit(3)
    time.sleep(1)


def killed(comm: Comm) -> None:
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    comm.barrier()


def stopped(comm: Comm) -> None:
    comm.all_reduce(ones(), "ring")
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    comm.barrier()


def sleeps(comm: Comm) -> None:
    comm.all_reduce(ones(), "ring")
    if comm.rank == 1:
        time.sleep(100)
    comm.barrier()


def polled_when_it_has_left(comm: Comm) -> None:
    if comm.rank != 1:
        poll(comm)


def poll(comm: Comm) -> None:
    work = comm.start(ones(), "ring")
    while not work.poll():
        time.sleep(0.01)


def waits_elsewhere(comm: Comm) -> None:
    """Rank 2 waits for rank 1, which waits for rank 0, in another communicator."""
    part = comm.split(int(comm.rank == 2))
    if comm.rank == 1:
        part.all_reduce(ones(), "ring")
    comm.barrier()


def dtype(comm: Comm) -> None:
    comm.all_reduce(ones(10, np.float32 if comm.rank else np.int32), "ring")


def count(comm: Comm) -> None:
    comm.all_reduce(ones(10 + 2 * comm.rank), "ring")


def operation(comm: Comm) -> None:
    if comm.rank == 1:
        comm.reduce_scatter(ones())
    else:
        comm.all_reduce(ones(), "ring")


def order(comm: Comm) -> None:
    for n in (10, 20) if comm.rank == 1 else (20, 10):
        comm.all_reduce(ones(n), "mpi")


def broadcast(comm: Comm) -> None:
    if comm.rank == 1:
        comm.broadcast(ones())
    else:
        comm.all_reduce(ones(), "ring")


def forks(comm: Comm) -> None:
    """No mistake: a child that ends by sys.exit leaves MPI to the rank."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of threads
    if os.fork() == 0:
        sys.exit(3)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
    comm.barrier()


if __name__ == "__main__":
    if sys.argv[1] == "hooked":
        sys.excepthook = lambda kind, error, trace: print("the user's own", error, file=sys.stderr)
        sys.argv[1] = "raises"
    is_second = "1" in (os.environ.get("OMPI_COMM_WORLD_RANK"), os.environ.get("PMI_RANK"))
    if sys.argv[1].startswith("late"):
        call_log.START = 3.0  # with default settings otherwise
        sys.argv[1] = sys.argv[1].removeprefix("late_")
    if sys.argv[1] == "interrupted_as_mpi_starts" and is_second:
        mpi_ranks.limited_start = interrupted_start
    if sys.argv[1] == "calls_mpi_at_exit":
        from mpi4py import MPI

        atexit.register(MPI.COMM_WORLD.Barrier)
    if sys.argv[1] == "never_comes":
        from mpi4py import MPI  # all ranks: their start may take long, and is not the question

        time.sleep(100 * MPI.COMM_WORLD.Get_rank())
    globals().get(sys.argv[1], clean)(world(guard=sys.argv[1] != "unguarded"))

"""Roll call: ranks meet before what only all of them together can do, and say whom they wait for.

Each rank sends to each other one what it has been asked for. A rank that has waited for PATIENCE
seconds knows by what has arrived who is missing, and goes on waiting.
"""

import time

import numpy as np

from nnmpi.comm.calls import Calls
from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.progress import Work
from nnmpi.comm.stderr import print_error
from nnmpi.comm.transport.base import TAGS, Transport

PATIENCE = 1.0  # seconds
PAUSE = 5e-5  # seconds between two looks
LENGTH = 32  # bytes of what a rank is asked for
TAG = TAGS - 1


def roll_call(calls: Calls, transport: Transport, what: str) -> None:
    """Returns when every rank has come; raises ValueError on all if they come for other things."""
    rank, ranks, numbers = transport.rank, range(transport.size), transport.members
    call = calls.log(what, "all ranks", package="nnmpi.")
    names = np.zeros(len(ranks), f"S{LENGTH}")
    names[rank] = what.encode()
    rows, others = names.view(np.uint8).reshape(-1, LENGTH), [r for r in ranks if r != rank]
    with calls.progress.lock:
        posted = [transport.irecv(rows[r], r, TAG) for r in others]
        posted += [transport.isend(rows[rank], r, TAG) for r in others]
        work = Work(iter([posted]), transport, calls.progress, call)
    until = time.monotonic() + PATIENCE
    while not work.poll() and time.monotonic() < until:
        time.sleep(PAUSE)
    missing = [numbers[r] for r in ranks if not names[r]]
    if missing and rank == np.flatnonzero(names)[0]:  # of those who wait, one says it
        print_error(
            f"rank {numbers[rank]} waits in {what} ({work.call.location}): {name_ranks(missing)} "
            f"did not call {what} yet; all ranks must call it"
        )
    work.wait()
    called = [name.decode() for name in names.tolist()]
    if len({*called}) > 1:
        each = ", ".join(
            f"rank {r} has called {name}" for r, name in zip(numbers, called, strict=True)
        )
        raise ValueError(f"{each}: all ranks must call the same, in one order")

"""A roll call: a barrier of ranks that say what they have come for, and whom they wait for.

Each rank sends to each other one the name of the method that it was called for. A rank that has
waited for PATIENCE seconds knows by what has arrived who is missing, and goes on waiting.
"""

import time

import numpy as np

from nnmpi.comm.calls import CallRunner
from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.progress import Work
from nnmpi.comm.stderr import print_error
from nnmpi.comm.transport.base import TAGS, Transport

PATIENCE = 1.0  # seconds until a rank says whom it waits for
PAUSE = 5e-5  # seconds between two looks
LONGEST_NAME = 32  # bytes of the name of a method
TAG = TAGS - 1


def roll_call(calls: CallRunner, call_name: str, transport: Transport) -> None:
    """Returns when every rank has come; raises ValueError on all if they come for other things.

    `transport` has the messages of these ranks.
    """
    rank, ranks, numbers = transport.rank, range(transport.size), transport.members
    call = calls.log(call_name, "all ranks", package="nnmpi.")
    names = np.zeros(len(ranks), f"S{LONGEST_NAME}")
    names[rank] = call_name.encode()
    rows, others = names.view(np.uint8).reshape(len(ranks), -1), [r for r in ranks if r != rank]
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
            f"rank {numbers[rank]} waits in {call_name} ({work.call.location}): "
            f"{name_ranks(missing)} did not call {call_name} yet; all ranks must call it"
        )
    work.wait()
    called = [name.decode() for name in names.tolist()]
    if len({*called}) > 1:
        each = ", ".join(
            f"rank {r} has called {name}" for r, name in zip(numbers, called, strict=True)
        )
        raise ValueError(f"{each}: all ranks must call the same, in one order")

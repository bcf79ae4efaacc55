"""A roll call: a barrier that names the ranks it waits for.

Each rank sends every other rank the name of the method that called it. A rank that has waited for
PATIENCE seconds knows from the names that have arrived who is missing, prints it, and waits on.
"""

import time

import numpy as np

from nnmpi.comm.call_log import CallSignature
from nnmpi.comm.calls import CallRunner
from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.progress import Work
from nnmpi.comm.stderr import print_error
from nnmpi.comm.transport.base import TAGS, Transport

PATIENCE = 1.0  # seconds until a rank prints whom it waits for
POLL_SECONDS = 5e-5  # seconds between two polls
LONGEST_NAME = 32  # bytes of a method's name
TAG = TAGS - 1


def roll_call(calls: CallRunner, call_name: str, transport: Transport) -> None:
    """Returns when every rank has called it; raises ValueError on all if `call_name` differs."""
    rank, ranks, numbers = transport.rank, range(transport.size), transport.members
    call = calls.record(CallSignature(calls.comm, call_name, "all ranks", None, 0, -1), "nnmpi.")
    names = np.zeros(len(ranks), f"S{LONGEST_NAME}")
    names[rank] = call_name.encode()
    rows, others = names.view(np.uint8).reshape(len(ranks), -1), [r for r in ranks if r != rank]
    with calls.progress.lock:
        posted = [transport.irecv(rows[r], r, TAG) for r in others]
        posted += [transport.isend(rows[rank], r, TAG) for r in others]
        work = Work(iter([posted]), transport, calls.progress, call)
    until = time.monotonic() + PATIENCE
    while not work.poll() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    missing = [numbers[r] for r in ranks if not names[r]]
    if missing and rank == np.flatnonzero(names)[0]:  # only the first waiting rank prints
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
        raise ValueError(f"ranks differ: {each}; all must call the same methods in the same order")

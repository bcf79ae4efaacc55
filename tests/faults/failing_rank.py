"""The training command, of which one rank dies: HOW SECONDS RANK, then the command's arguments."""

import os
import signal
import sys
from collections.abc import Callable
from typing import NoReturn


class FailingRankError(Exception):
    """Not a RuntimeError, by which mpi4py says that MPI cannot be used."""


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def interrupted() -> None:
    signal.raise_signal(signal.SIGINT)


def raises() -> NoReturn:
    raise FailingRankError("this rank fails")


def leaves() -> NoReturn:
    sys.exit(0)


def exits() -> NoReturn:
    sys.exit(3)


HOW: dict[str, Callable[[], None]] = {
    "killed": killed,
    "stopped": stopped,
    "interrupted": interrupted,
    "raises": raises,
    "leaves": leaves,
    "exits": exits,
}

if __name__ == "__main__":
    how, seconds, failing = sys.argv[1:4]
    rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK")
    if rank == failing:
        signal.signal(signal.SIGALRM, lambda *_: HOW[how]())
        signal.setitimer(signal.ITIMER_REAL, float(seconds))
    from nnmpi import train

    sys.exit(train.main(sys.argv[4:]))

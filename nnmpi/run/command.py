"""What the commands that start ranks have in common."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, redirect_stdout
from io import StringIO
from typing import Any

from nnmpi.comm import Comm, OtherRankError, job
from nnmpi.options import cli


def on_ranks(program: str, command: Callable[[Comm], int], memory: str) -> int:
    """The exit status of a command on every rank of the job; what ends it early is one line on
    stderr, of one rank. `memory`: what to do where it is too small."""

    def of_job() -> int:
        comm = job()
        try:
            return command(comm)
        except KeyboardInterrupt:
            if comm.size > 1:  # the others wait for this rank
                comm.abort("interrupted", 130)
            raise

    try:
        return cli.run(program, of_job, memory)
    except OtherRankError:
        return 0  # the other rank prints the error, and its exit status is that of the job
    except RuntimeError as error:  # MPI cannot be used
        return cli.fail(program, error, 1)


def first_prints(comm: Comm) -> AbstractContextManager[Any]:
    """Within it the first rank alone prints to standard output."""
    return redirect_stdout(sys.stdout if comm.rank == 0 else StringIO())

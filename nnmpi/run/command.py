"""Runs commands on ranks: parses arguments, reports errors, lets one rank print."""

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, redirect_stdout
from io import StringIO
from typing import Any

from nnmpi.comm import Comm, OtherRankError, job
from nnmpi.options import cli
from nnmpi.parallel.agreement import all_or_none


def run_on_ranks(
    p: cli.Parser,
    command: Callable[[Comm, argparse.Namespace], int],
    arguments: Sequence[str] | None,
    memory: str,
) -> int:
    """Runs a command on every rank, and returns its exit status. One rank prints an error as one
    line on stderr, with the advice `memory` if memory is too small."""

    def of_job() -> int:
        comm = job()
        try:
            with rank_0_prints(comm):  # --help would print on every rank
                given = all_or_none(comm, lambda: p.parse_args(arguments))
            return command(comm, given)
        except KeyboardInterrupt:
            if comm.size > 1:  # the other ranks may be waiting for this one, and would hang
                comm.abort("interrupted", 130)
            raise

    try:
        return cli.run(p.program, of_job, memory)
    except OtherRankError:
        return 0  # the other rank prints the error, and its exit status is that of the job
    except RuntimeError as error:  # MPI cannot be used
        return cli.fail(p.program, error, 1)


def rank_0_prints(comm: Comm) -> AbstractContextManager[Any]:
    """Returns a context in which only rank 0 prints to standard output."""
    return redirect_stdout(sys.stdout if comm.rank == 0 else StringIO())

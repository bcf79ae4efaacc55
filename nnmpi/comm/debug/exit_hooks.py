"""Exceptions that reach the top of a rank end the job.

Left alone, a rank that fails waits in MPI_Finalize for the others, which wait for it.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType

from nnmpi.comm.stderr import flush_output, print_error

INTERRUPTED = 130  # the exit status that shells give to Ctrl-C


def install(rank: int, size: int, abort: Callable[[int], None]) -> None:
    """Replaces Python's exception hooks: they print the exception of this rank, and abort the job.

    Hooks that the user has set are called first. A fork of the rank's process is no rank.
    """
    process = os.getpid()
    before, thread_before = sys.excepthook, threading.excepthook
    own = before is not sys.__excepthook__
    thread_own = thread_before is not threading.__excepthook__

    def end(text: str, status: int = 1) -> None:
        flush_output()
        lines = text.rstrip().splitlines()
        print_error("\n".join(f"rank {rank} of {size}: {line}" for line in lines))
        abort(status)

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_rank, interrupted = os.getpid() == process, issubclass(kind, KeyboardInterrupt)
        if not is_rank or (own and not interrupted):
            before(kind, error, trace)
        if is_rank and interrupted:
            end("interrupted", INTERRUPTED)
        elif is_rank:
            end(kind.__name__ if own else _traceback(kind, error, trace))

    def thread_hook(args: threading.ExceptHookArgs) -> None:
        ends = os.getpid() == process and not issubclass(args.exc_type, SystemExit)
        if thread_own or not ends:
            thread_before(args)
        if ends:
            thread = f"in thread {args.thread.name}:\n" if args.thread else ""
            trace = _traceback(args.exc_type, args.exc_value, args.exc_traceback)
            end(thread + (args.exc_type.__name__ if thread_own else trace))

    sys.excepthook, threading.excepthook = hook, thread_hook


def _traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> str:
    return "".join(traceback.format_exception(kind, error, trace))

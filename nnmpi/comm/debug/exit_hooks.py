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


class ExitHooks:
    """Print the exception of this rank and call `abort(status)`."""

    def __init__(self, rank: int, size: int, abort: Callable[[int], None]) -> None:
        self._name, self._abort, self._process = f"rank {rank} of {size}", abort, os.getpid()

    def install(self) -> None:
        """Replaces Python's exception hooks; hooks that the user has set are called first."""
        before, thread_before = sys.excepthook, threading.excepthook
        own = before is not sys.__excepthook__
        thread_own = thread_before is not threading.__excepthook__

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            interrupted = issubclass(kind, KeyboardInterrupt)
            if not self._is_rank() or (own and not interrupted):
                before(kind, error, trace)
            if self._is_rank() and interrupted:
                self._end("interrupted", INTERRUPTED)
            elif self._is_rank():
                self._end(kind.__name__ if own else _traceback(kind, error, trace))

        def thread_hook(args: threading.ExceptHookArgs) -> None:
            ends = self._is_rank() and not issubclass(args.exc_type, SystemExit)
            if thread_own or not ends:
                thread_before(args)
            if ends:
                thread = f"in thread {args.thread.name}:\n" if args.thread else ""
                trace = _traceback(args.exc_type, args.exc_value, args.exc_traceback)
                self._end(thread + (args.exc_type.__name__ if thread_own else trace))

        sys.excepthook, threading.excepthook = hook, thread_hook

    def _is_rank(self) -> bool:
        """Whether this is the rank's process and no fork of it."""
        return os.getpid() == self._process

    def _end(self, text: str, status: int = 1) -> None:
        flush_output()
        print_error("\n".join(f"{self._name}: {line}" for line in text.rstrip().splitlines()))
        self._abort(status)


def _traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> str:
    return "".join(traceback.format_exception(kind, error, trace))

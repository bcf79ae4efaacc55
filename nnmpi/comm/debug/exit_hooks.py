"""What becomes of the job when one process of it ends in an unusual way.

Left alone, a rank that fails waits in MPI_Finalize for the others, which wait for it.
"""

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from types import CodeType, TracebackType
from typing import Any, NoReturn

INTERRUPTED = 130  # the exit status that shells give to Ctrl-C
JUST_NOW = 1.0  # seconds


def say(text: str) -> None:
    """To stderr in one write, so that what several ranks say at once is not mixed line by line."""
    data = (text.rstrip("\n") + "\n").encode(errors="replace")
    with suppress(OSError):  # nobody reads it: what follows matters more
        while data:
            data = data[os.write(2, data) :]


class Ends:
    """How this process ends: prints and aborts where an exception reaches the top."""

    def __init__(self, rank: int, size: int, abort: Callable[[int], None]) -> None:
        self._name, self._abort, self._process = f"rank {rank} of {size}", abort, os.getpid()
        # the argument of the last sys.exit, and when
        self._exit: tuple[object, float] | None = None
        self._top = _outermost()

    def install(self) -> None:
        """Puts itself before Python's hooks; one that the user has set is still called."""
        before, leave = sys.excepthook, sys.exit
        own = before is not sys.__excepthook__
        thread_before = threading.excepthook
        thread_own = thread_before is not threading.__excepthook__

        def hook(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            interrupted = issubclass(kind, KeyboardInterrupt)
            if not self._here() or (own and not interrupted):
                before(kind, error, trace)
            if self._here() and interrupted:
                self._end("interrupted", INTERRUPTED)
            elif self._here():
                self._end(kind.__name__ if own else _traceback(kind, error, trace))

        def thread_hook(args: threading.ExceptHookArgs) -> None:
            ends = self._here() and not issubclass(args.exc_type, SystemExit)
            if thread_own or not ends:
                thread_before(args)
            if ends:
                thread = f"in thread {args.thread.name}:\n" if args.thread else ""
                trace = _traceback(args.exc_type, args.exc_value, args.exc_traceback)
                self._end(thread + (args.exc_type.__name__ if thread_own else trace))

        def exit(status: Any = None, /) -> NoReturn:
            try:
                leave(status)
            except SystemExit as error:
                self._exit = error.code, time.monotonic()
                raise

        sys.excepthook, threading.excepthook, sys.exit = hook, thread_hook, exit

    def status(self) -> int:
        """The exit status, asked at the end of the process: 0 if it is not known.

        Python tells nobody. It is known after an exception, and after sys.exit, if that was just
        now: then nobody has caught it. It is not known after `raise SystemExit(1)`, nor after
        `sys.exit(main())` if main was the first to ask for ranks: sys.exit was looked up before.
        """
        last: BaseException | None = getattr(sys, "last_value", None)
        if last is not None and not isinstance(last, SystemExit) and self._reached_top(last):
            return 1
        if self._exit is None or time.monotonic() - self._exit[1] > JUST_NOW:
            return 0
        code = self._exit[0]
        return code & 0xFF if isinstance(code, int) else int(code is not None)

    def _reached_top(self, error: BaseException) -> bool:
        trace = error.__traceback__
        return trace is not None and trace.tb_frame.f_code is self._top

    def _here(self) -> bool:
        """A process that was forked from this one is none of the job's ranks."""
        return os.getpid() == self._process

    def _end(self, text: str, status: int = 1) -> None:
        flush()
        say("\n".join(f"{self._name}: {line}" for line in text.rstrip().splitlines()))
        self._abort(status)


def flush() -> None:
    """What was printed before the job is killed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads it
            stream.flush()


def _traceback(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> str:
    return "".join(traceback.format_exception(kind, error, trace))


def _outermost() -> CodeType:
    """The code of the frame that everything on this thread is called from."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code

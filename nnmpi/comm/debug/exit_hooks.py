"""Exception hooks: an exception that no code catches ends the job, or this rank alone.

Without them a rank that fails waits in MPI_Finalize for the others, which wait for it.
"""

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from types import TracebackType
from typing import NamedTuple, TypeAlias

import numpy as np

from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.stderr import flush_output, print_error
from nnmpi.comm.transport.base import OtherRankError, RankLost

TIME_TO_BE_ENDED = 3.0  # seconds to wait for the rank that failed first to end the job

MOST_CHARACTERS = 1000  # characters of an error message that ranks compare
INTERRUPTED = 130  # the exit status that shells give to Ctrl-C

Kind: TypeAlias = type[BaseException]
ExceptHook: TypeAlias = Callable[[Kind, BaseException, TracebackType | None], None]
ThreadHook: TypeAlias = Callable[[threading.ExceptHookArgs], None]
Report: TypeAlias = Callable[[Kind, BaseException, bool], None]


class JobEnd(NamedTuple):
    """How a rank ends: with the whole job, by `end_job(status)`, or alone in a fault-tolerant job,
    which then continues."""

    end_job: Callable[[int], None]
    fault_tolerant: bool = False

    def end_rank(self) -> None:
        """Ends this rank; also ends all other ranks unless the job is fault tolerant."""
        if self.fault_tolerant:  # ULFM notices SIGKILL, but no exit status and no other signal
            os.kill(os.getpid(), signal.SIGKILL)
        self.end_job(1)


class Failures(NamedTuple):
    """The failures that a failing rank knows of."""

    is_first: bool = True  # this rank failed first
    others: Mapping[int, str] = {}  # other ranks that failed, and their messages
    all_ended: bool = False  # all other ranks have failed or reached their end


@contextmanager
def fatal(who: str, ending: JobEnd, passed: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Returns a context in which an exception, unless `passed`, is printed and ends this rank, or
    the job, before the hooks are installed, or after Python stops calling them."""
    try:
        yield
    except passed:
        raise
    except BaseException as error:
        _interrupt_ends_process()
        if isinstance(error, KeyboardInterrupt):
            _print(who, "interrupted")
            ending.end_job(INTERRUPTED)
        _print(who, traceback.format_exc())
        ending.end_rank()


def install(
    rank: int, size: int, ending: JobEnd, failures: Callable[[str, bool], Failures]
) -> None:
    """Replaces Python's exception hooks by hooks that print this rank's exception and end the rank.

    `ending` ends the rank, or the whole job. `failures(message, follows)` reports the exception to
    the other ranks, where `follows` is True if it only follows from another rank's failure. Hooks
    that the user has set are called first. In a fork of the rank's process only the old hooks act.
    """
    who = f"rank {rank} of {size}"
    report = partial(_report, who, rank, ending, failures)
    sys.excepthook = _hook_of_rank(who, ending, report)
    threading.excepthook = _hook_of_threads(who, ending)


def _hook_of_rank(who: str, ending: JobEnd, report: Report) -> ExceptHook:
    """Returns the hook for an exception that ends the program of this rank."""
    process, old_hook = os.getpid(), sys.excepthook
    is_custom = old_hook is not sys.__excepthook__

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        is_rank, interrupted = os.getpid() == process, issubclass(kind, KeyboardInterrupt)
        if is_rank:
            _interrupt_ends_process()
        if not is_rank or (is_custom and not interrupted):
            old_hook(kind, error, trace)
        if is_rank and interrupted:
            _print(who, "interrupted")
            ending.end_job(INTERRUPTED)
        elif is_rank and isinstance(error, RankLost):  # not caught, so this rank will not shrink
            _print(who, "RankLost" if is_custom else f"RankLost: {error}")
            ending.end_job(1)
        elif is_rank and is_custom and not ending.fault_tolerant:
            _print(who, kind.__name__)
            ending.end_job(1)
        elif is_rank:
            report(kind, error, is_custom)

    return hook


def _report(
    who: str,
    rank: int,
    ending: JobEnd,
    failures: Callable[[str, bool], Failures],
    kind: type[BaseException],
    error: BaseException,
    is_custom: bool,
) -> None:
    """Tells the other ranks of this rank's exception, prints it, and ends the rank or the job. Only
    the kind is printed if a hook of the user has printed the rest (`is_custom`)."""
    message = "".join(traceback.format_exception_only(kind, error)).rstrip()[:MOST_CHARACTERS]
    is_first, others, all_ended = failures(message, issubclass(kind, OtherRankError))
    if all_ended or not ending.fault_tolerant:  # the first rank prints, and ends the others
        time.sleep(0 if is_first else TIME_TO_BE_ENDED)
    text = kind.__name__ if is_custom else traceback_text(error)
    _print(who, _others(rank, message, others) + text)
    if all_ended:
        ending.end_job(1)
    ending.end_rank()


def _hook_of_threads(who: str, ending: JobEnd) -> ThreadHook:
    """Returns the hook for an exception that ends a thread of this rank."""
    process, old_hook = os.getpid(), threading.excepthook
    is_own = old_hook is not threading.__excepthook__

    def hook(args: threading.ExceptHookArgs) -> None:
        ends = os.getpid() == process and not issubclass(args.exc_type, SystemExit)
        if is_own or not ends:
            old_hook(args)
        if ends:
            thread = f"in thread {args.thread.name}:\n" if args.thread else ""
            known = None if is_own else args.exc_value
            _print(who, thread + (traceback_text(known) if known else args.exc_type.__name__))
            ending.end_rank()

    return hook


def _print(who: str, text: str) -> None:
    """Prints the reason why this rank ends; each line begins with `who`, the rank's name."""
    flush_output()
    print_error("\n".join(f"{who}: {line}" for line in text.rstrip().splitlines()))


def _interrupt_ends_process() -> None:
    """Lets Ctrl-C end the process at once, since a KeyboardInterrupt would only delay the end."""
    with suppress(ValueError):  # only the main thread may set signal handlers
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _others(rank: int, message: str, others: Mapping[int, str]) -> str:
    """Returns text on the other failed ranks, whose messages are in `others`: a line for each of
    them, but a single line for all that failed with the same `message` as this rank."""
    alike = [r for r in others if others[r] == message]
    lines = [f"{name_ranks(sorted([rank, *alike]))} failed with the same error:\n"] if alike else []
    rest = (f"rank {r} failed too: {text}\n" for r, text in others.items() if r not in alike)
    return "".join([*rest, *lines])


# ---- tracebacks for users: frames of this package, where the mistake rarely is, are left out

PACKAGE = str(Path(__file__).parents[2]) + os.sep
RUNPY = "<frozen runpy>"  # frames of `python -m`
DECORATOR = np.errstate.__call__.__code__.co_filename  # np.errstate decorates functions of nnmpi

TRUNCATED = (
    "ranks called different collectives, or with arrays of different lengths or types: "
    "NNMPI_DEBUG=collectives shows the calls that differ\n"
)


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception, without frames of nnmpi unless NNMPI_TRACEBACK=full."""
    described = TracebackException.from_exception(error)
    # the text of MPI_ERR_TRUNCATE, in any MPI
    hint = TRUNCATED if "message truncated" in str(described).lower() else ""
    stacks = [part.stack for part in _chain(described)]
    left_out = sum(map(_is_ours, frames := [frame for stack in stacks for frame in stack]))
    if os.environ.get("NNMPI_TRACEBACK") == "full" or left_out in (0, len(frames)):
        return "".join(described.format()) + hint
    for part in _chain(described):
        part.stack = StackSummary.from_list([f for f in part.stack if not _is_ours(f)])
    about = f"{left_out} frames of nnmpi are left out; NNMPI_TRACEBACK=full shows them\n"
    return about + "".join(described.format()) + hint


def _chain(error: TracebackException | None) -> Iterator[TracebackException]:
    """Yields the exception, then its causes or contexts, as Python prints them."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename in (RUNPY, DECORATOR) or frame.filename.startswith(PACKAGE)

"""Tracebacks for users: frames of this package, where the mistake rarely is, are left out."""

import os
from collections.abc import Iterator
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException

import numpy as np

PACKAGE = str(Path(__file__).parents[2]) + os.sep
RUNPY = "<frozen runpy>"  # the frames of `python -m`
DECORATOR = np.errstate.__call__.__code__.co_filename  # between those of training


def traceback_text(error: BaseException) -> str:
    """The traceback of an exception, in which frames of nnmpi are left out if there are others.

    With NNMPI_TRACEBACK=full it is Python's.
    """
    found = TracebackException.from_exception(error)
    stacks = [one.stack for one in _chain(found)]
    left_out = sum(map(_is_ours, frames := [frame for stack in stacks for frame in stack]))
    if os.environ.get("NNMPI_TRACEBACK") == "full" or left_out in (0, len(frames)):
        return "".join(found.format())
    for one in _chain(found):
        one.stack = StackSummary.from_list([f for f in one.stack if not _is_ours(f)])
    about = f"{left_out} frames of nnmpi are left out; NNMPI_TRACEBACK=full shows them\n"
    return about + "".join(found.format())


def _chain(error: TracebackException | None) -> Iterator[TracebackException]:
    """The exception, and what it comes from."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_ours(frame: FrameSummary) -> bool:
    return frame.filename in (RUNPY, DECORATOR) or frame.filename.startswith(PACKAGE)

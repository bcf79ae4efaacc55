"""Printing what ends a job, on a rank that is about to be killed."""

import os
import sys
from contextlib import suppress

from nnmpi.options.quoting import printable


def print_error(text: str) -> None:
    """Writes to stderr at once, so that lines of several ranks are not mixed."""
    lines = map(printable, text.rstrip("\n").split("\n"))
    data = ("\n".join(lines) + "\n").encode(errors="replace")
    with suppress(OSError):  # nobody reads it, and what follows matters more
        while data:
            data = data[os.write(2, data) :]


def flush_output() -> None:
    """Writes what was printed so far, before the job is killed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads it
            stream.flush()

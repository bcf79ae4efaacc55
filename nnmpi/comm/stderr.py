"""Printing to stderr what ends a job, on a rank that is about to be killed."""

import os
import sys
from contextlib import suppress

from nnmpi.options.quoting import printable


def print_error(text: str) -> None:
    """Writes text to stderr at once, so that the lines of several ranks do not mix."""
    lines = map(printable, text.rstrip("\n").split("\n"))
    data = ("\n".join(lines) + "\n").encode(errors="replace")
    with suppress(OSError):  # stderr is closed; ending the job matters more
        while data:
            data = data[os.write(2, data) :]


def flush_output() -> None:
    """Flushes stdout and stderr before the job is killed."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, OSError, ValueError):  # the stream is closed or has no reader
            stream.flush()

"""Reads users' files: up to a maximal size, and JSON and TOML however deeply nested."""

import errno
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def content(
    path: str | os.PathLike[str], label: str, most: int, remedy: str, shorter: str = ""
) -> bytes:
    """The bytes of a file; raises ValueError if it cannot be read, has more than `most` bytes, or
    is a pipe that no process writes to.

    remedy, shorter: the advice if it cannot be read, and if it is too long
    """

    def at_once(name: str, flags: int) -> int:  # a plain open would wait for a pipe's writer
        return os.open(name, flags | os.O_NONBLOCK)

    try:
        with open(path, "rb", opener=at_once) as file:
            os.set_blocking(file.fileno(), True)
            data = file.read(most + 1)
            if not data and stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EPIPE, "a pipe that no process writes to")
    except OSError as error:
        raise ValueError(f"cannot read {label}: {error.strerror or error}; {remedy}") from None
    if len(data) > most:
        raise ValueError(f"{label} is longer than {most:,} bytes; {shorter or remedy}")
    return data


def parsed(parse: Callable[[Any], Any], text: str | bytes) -> Any:
    """The result of `parse` for a text; raises ValueError if the text is nested too deeply."""
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("its lists, objects or tables are nested too deeply") from None


def check_regular(path: str | os.PathLike[str], most: float = math.inf) -> None:
    """Raises OSError for a pipe (reading it could wait for ever), for a device, and for a file of
    more than `most` bytes."""
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if facts.st_size > most:
        size = f"more than {most:,} bytes ({facts.st_size:,})"
        raise OSError(errno.EFBIG, size, os.fspath(path))


@contextmanager
def refusing_others(label: str, remedy: str) -> Iterator[None]:
    """A context in which errors caused by parsed data of another form than nnmpi writes become a
    ValueError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{label}: {error!r:.100}; {remedy}") from None

"""Reads users' files: limits size and nesting, and says errors in one line."""

import errno
import json
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nnmpi.options.quoting import shown

JSON_BYTES = 16 << 20  # size of a JSON file, at most


def content(
    path: str | os.PathLike[str], label: str, most: int, remedy: str, shorter: str = ""
) -> bytes:
    """Returns the bytes of a file; raises ValueError if it cannot be read, has more than `most`
    bytes, or is a pipe that no process writes to.

    label: the name of the file in the error
    remedy, shorter: the advice in the error if it cannot be read, and if it is too long
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
    """Returns `parse(text)`; raises ValueError for text nested too deeply."""
    try:
        return parse(text)
    except RecursionError:
        raise ValueError("its lists, objects or tables are nested too deeply") from None


def check_regular(path: str | os.PathLike[str], most: float = math.inf) -> None:
    """Raises OSError for a pipe, a device, or more than `most` bytes."""
    facts = os.stat(path)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
    if facts.st_size > most:
        size = f"more than {most:,} bytes ({facts.st_size:,})"
        raise OSError(errno.EFBIG, size, os.fspath(path))


class RefusedError(ValueError):
    """Raised if a file cannot be used; the message names the file and the problem."""


@contextmanager
def reading(file: object, remedy: str) -> Iterator[None]:
    """A context for reading `file`: errors of reading become a RefusedError whose message is one
    line with the name of the file, the problem and the advice `remedy`."""
    try:
        yield
    except (RefusedError, AttributeError, NameError, AssertionError):
        raise  # the last three are bugs in this code, not faults of the file
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        # an OSError, or the RuntimeError of a zip file with a password: the file is intact
        is_whole = getattr(error, "errno", None) or type(error) is RuntimeError
        fault = "cannot be read" if is_whole else "is damaged"
        text = getattr(error, "strerror", None) or str(error)  # str(OSError) repeats the file name
        reason = shown(" ".join(text.split())) or type(error).__name__
        raise RefusedError(f"{shown(file)} {fault}: {reason}; {remedy}") from None


def read_json(path: Path, remedy: str) -> Any:
    """Returns a JSON file's value; raises RefusedError with advice."""
    with reading(path, remedy):
        check_regular(path, JSON_BYTES)
        return parsed(json.loads, path.read_bytes())


@contextmanager
def refusing_others(label: str, remedy: str) -> Iterator[None]:
    """A context for reading what another program may have written: an error due to its form, such
    as a missing key, becomes a ValueError with `label` and the advice `remedy`."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{label}: {error!r:.100}; {remedy}") from None

"""Data files: errors as one line with the remedy."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.arrays.cgroup import memory_limit
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import check_regular, parsed

REMEDY = "delete it and run again with --download, or put a good copy in its place"
JSON_BYTES = 16 << 20  # of a file of JSON, at most


class RefusedError(ValueError):
    """What is wrong with a file, in words that name it."""


@contextmanager
def reading(file: object, remedy: str = REMEDY) -> Iterator[None]:
    """Raises RefusedError if the file is damaged or cannot be read."""
    try:
        yield
    except (RefusedError, AttributeError, NameError, AssertionError):
        raise  # the last three are mistakes of this code, not of the file
    except Exception as error:  # decoders raise all kinds of errors for damaged files
        is_whole = getattr(error, "errno", None) or type(error) is RuntimeError  # has a password
        fault = "cannot be read" if is_whole else "is damaged"
        text = getattr(error, "strerror", None) or str(error)  # else the file is named twice
        reason = shown(" ".join(text.split())) or type(error).__name__
        raise RefusedError(f"{shown(file)} {fault}: {reason}; {remedy}") from None


def read_json(path: Path, remedy: str) -> Any:
    """What a file of JSON says; raises RefusedError if it is none, no regular file, or too long."""
    with reading(path, remedy):
        check_regular(path, JSON_BYTES)
        return parsed(json.loads, path.read_bytes())


def check_room(what: object, announced: str, count: int) -> None:
    """Raises RefusedError if arrays of `count` bytes are larger than the memory."""
    memory = memory_size()
    if count > memory:
        raise RefusedError(
            f"{shown(what)} announces {shown(announced)} {count:,} bytes, but there are "
            f"{memory:,} bytes of memory; check it, or take fewer samples"
        )


def check_labels(y: np.ndarray, classes: int) -> None:
    """Raises ValueError unless all labels are below `classes`."""
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise ValueError(f"it has label {y[row]} in row {row:,}, expected 0 to {classes - 1}")


def memory_size() -> int:
    """The bytes of memory that this process may take: of the machine, or of its control group."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(machine, memory_limit() or machine)

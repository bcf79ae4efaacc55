"""What may fail on one rank only: all ranks go on, or none."""

from collections.abc import Callable
from typing import TypeVar

from nnmpi.comm import Comm

T = TypeVar("T")


def all_or_none(comm: Comm, f: Callable[[], T]) -> T:
    """Calls f on every rank; if it fails on one rank, it fails on all."""
    error: Exception | None = None
    try:
        result = f()
    except Exception as caught:
        error = caught
    comm.agree(error)
    return result

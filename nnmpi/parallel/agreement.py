"""Agreement of ranks: exchange of arbitrary objects, and errors that all ranks raise together."""

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from nnmpi.comm import Comm, OtherRankError

T = TypeVar("T")


def all_or_none(comm: Comm, f: Callable[[], T]) -> T:
    """Calls f on every rank and returns its result; if f fails on one, all raise an error.

    OtherRankError is raised on this rank only: the rank that has failed reports its own error.
    """
    error: Exception | None = None
    try:
        result = f()
    except Exception as caught:
        error = caught
    comm.agree(None if isinstance(error, OtherRankError) else error)
    if error is not None:
        raise error
    return result


def gather_objects(comm: Comm, item: T) -> list[T]:
    """Returns the items that the ranks pass, in the order of ranks; every rank calls it."""
    data = np.frombuffer(pickle.dumps(item), np.uint8)
    counts = np.zeros(comm.size, np.int64)
    counts[comm.rank] = len(data)
    comm.all_gather(counts)
    ends = np.cumsum(counts)
    rows = np.zeros(ends[-1], np.uint8)
    rows[ends[comm.rank] - len(data) : ends[comm.rank]] = data
    comm.all_gather(rows, parts=counts.tolist())
    return [pickle.loads(row.tobytes()) for row in np.split(rows, ends[:-1])]


def send_object(comm: Comm, item: object, to: int, tag: int = 0) -> None:
    """Sends the object `item` to rank `to`, which gets it by `receive_object` with the same tag."""
    data = np.frombuffer(pickle.dumps(item), np.uint8)
    comm.isend(np.array([data.size]), to, tag).wait()
    comm.isend(data, to, tag).wait()


def receive_object(comm: Comm, source: int, tag: int = 0) -> Any:
    """Returns the object that rank `source` sends with `send_object` and the same tag."""
    size = np.zeros(1, int)
    comm.irecv(size, source, tag).wait()
    data = np.empty(size[0], np.uint8)
    comm.irecv(data, source, tag).wait()
    return pickle.loads(data.tobytes())

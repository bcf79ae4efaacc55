"""What several tests or ranks need, made once."""

import functools
import pickle
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

import nnmpi
from nnmpi.comm import Comm

Made = TypeVar("Made")


def once(make: Callable[..., Made]) -> Callable[..., Made]:
    """As functools.cache; of ranks that are threads one makes it, and the others wait for that."""
    cached, lock = functools.cache(make), threading.RLock()

    @functools.wraps(make)
    def get(*args: object, **kwargs: object) -> Made:
        with lock, nnmpi.seeded(0):  # so the modules of all ranks stay equally numbered
            return cached(*args, **kwargs)

    return get


def by_first(comm: Comm, make: Callable[[], Made]) -> Made:
    """What ranks compare with: the first one makes it, and the others get a copy."""
    if comm.size == 1:
        return make()
    with nnmpi.seeded(0):
        found = pickle.dumps(make()) if comm.rank == 0 else b""
    size = np.array([len(found)])
    comm.broadcast(size)
    data = np.frombuffer(found.ljust(size[0]), np.uint8).copy()
    comm.broadcast(data)
    made: Made = pickle.loads(data.tobytes())
    return made


@contextmanager
def folder(comm: Comm) -> Iterator[str]:
    """A folder that all ranks see."""
    name = by_first(comm, tempfile.mkdtemp)
    yield name
    comm.barrier()
    if comm.rank == 0:
        shutil.rmtree(name)

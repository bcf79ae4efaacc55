"""Checks that all ranks start from the same options, data and model.

Ranks that differ would train on silently, or deadlock.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.comm import Comm
from nnmpi.config import Config, options
from nnmpi.data import Dataset
from nnmpi.nn import Module
from nnmpi.parallel.entries import first_difference

MAX_BYTES = 16 << 20  # of an array that are compared
MAY_DIFFER = ("data_dir", "save", "log", "quiet")
"""Options for where a rank finds its files, and what it writes."""

REMEDIES = {
    "option": "start all ranks with the same options",
    "data": "give all ranks the same samples in the same order",
    "model": "let every rank draw them from one seed, or load one file",
}


def check(comm: Comm, config: Config, dataset: Dataset, model: Module) -> None:
    """All ranks fail if one of them differs from the others; every rank calls it."""
    brought = [*_options(config), *_data(dataset), *_shapes(model)]
    rows = np.zeros((comm.size, len(brought)), np.uint64)
    rows[comm.rank] = [digest for _, _, digest in brought]
    comm.all_gather(rows)
    different = np.flatnonzero(rows[comm.rank] != rows[0])
    error: ValueError | None = None
    if different.size:
        kind, what, _ = brought[different[0]]
        error = ValueError(f"rank {comm.rank} differs from rank 0 in {what}; {REMEDIES[kind]}")
    comm.agree(error)
    found = first_difference(comm, model)
    if found is not None:
        path, other = found
        error = ValueError(
            f"rank {comm.rank} differs from rank {other} in the values that {path} starts from; "
            f"{REMEDIES['model']}"
        )
    comm.agree(error)


def _options(config: Config) -> Iterator[tuple[str, str, int]]:
    for option in options():
        if option.name not in MAY_DIFFER:
            value = getattr(config, option.name)
            yield "option", f"{option.name} ({value!r:.60})", _digest(repr(value).encode())


def _data(d: Dataset) -> Iterator[tuple[str, str, int]]:
    for what, split in (("training", d.train), ("testing", d.test)):
        n = len(split.y)
        yield "data", f"the number of samples for {what} ({n:,})", n
        yield "data", f"the labels of the samples for {what}", _digest(*_array(split.y))
        yield "data", f"the samples for {what}", _digest(*_array(split.x))


def _shapes(model: Module) -> Iterator[tuple[str, str, int]]:
    shapes = [(place.path, place.shape) for place, _ in model.tensors()]
    yield "model", "the names and shapes of parameters and buffers", _digest(repr(shapes).encode())


def _array(array: Any) -> tuple[bytes, bytes]:
    """Shape and type, and the bytes; of a large array every k-th row."""
    k = -(-array.nbytes // MAX_BYTES) or 1
    rows = np.ascontiguousarray(backend.to_host(array[::k] if array.ndim else array))
    return f"{array.shape} {array.dtype}".encode(), rows.tobytes()


def _digest(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")

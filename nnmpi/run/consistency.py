"""Whether all ranks bring the same: options, data, and a model to start from.

Ranks that bring different things would train on without a word, or wait for each other for ever.
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
from nnmpi.nn.bits import parameters_sha256

MOST = 16 << 20  # bytes of an array that are looked at
OWN = ("data_dir", "save", "log", "quiet")
"""Options that may differ: where a rank finds its files, and what it writes."""

REMEDIES = {
    "option": "start all ranks with the same options",
    "data": "give all ranks the same samples in the same order",
    "model": "let every rank draw them from one seed, or load one file",
}


def check(comm: Comm, config: Config, dataset: Dataset, model: Module) -> None:
    """All ranks fail if one of them differs from rank 0; every rank calls it."""
    brought = [*_options(config), *_data(dataset), *_model(model)]
    rows = np.zeros((comm.size, len(brought)), np.uint64)
    rows[comm.rank] = [digest for _, _, digest in brought]
    comm.all_gather(rows)
    error: ValueError | None = None
    different = np.flatnonzero(rows[comm.rank] != rows[0])
    if different.size:
        kind, what, _ = brought[different[0]]
        error = ValueError(f"rank {comm.rank} differs from rank 0 in {what}; {REMEDIES[kind]}")
    comm.agree(error)


def _options(config: Config) -> Iterator[tuple[str, str, int]]:
    for option in options():
        if option.name not in OWN:
            value = getattr(config, option.name)
            yield "option", f"{option.name} ({value!r:.60})", _digest(repr(value).encode())


def _data(d: Dataset) -> Iterator[tuple[str, str, int]]:
    for what, split in (("training", d.train), ("testing", d.test)):
        n = len(split.y)
        yield "data", f"the number of samples for {what} ({n:,})", n
        yield "data", f"the labels of the samples for {what}", _digest(*_array(split.y))
        yield "data", f"the samples for {what}", _digest(*_array(split.x))


def _model(model: Module) -> Iterator[tuple[str, str, int]]:
    shapes = [(name, array.shape) for name, array in model.named_parameters()]
    yield "model", "the names and shapes of parameters", _digest(repr(shapes).encode())
    yield (
        "model",
        "the values that parameters start from",
        _digest(parameters_sha256(model).encode()),
    )
    buffers = [part for _, b in model.named_buffers() for part in _array(b)]
    yield "model", "the values that buffers start from", _digest(*buffers)


def _array(array: Any) -> tuple[bytes, bytes]:
    """What it is, and its bytes: of a large one every k-th row."""
    k = -(-array.nbytes // MOST) or 1
    rows = np.ascontiguousarray(backend.to_host(array[::k] if array.ndim else array))
    return f"{array.shape} {array.dtype}".encode(), rows.tobytes()


def _digest(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")

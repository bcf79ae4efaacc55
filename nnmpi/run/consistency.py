"""Checks that all ranks start from the same options, data and model.

Ranks that differ would deadlock, or train to wrong results without an error.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from nnmpi import backend
from nnmpi.comm import Comm
from nnmpi.config import Config, options
from nnmpi.data import Dataset
from nnmpi.data.inputs import parts
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.parallel.model.entries import first_difference
from nnmpi.parallel.model.parts import PartTable, everything
from nnmpi.parallel.step.executor import StepState

MAX_BYTES = 16 << 20
"""How much of an array is compared: of a larger one, every k-th row."""

MAY_DIFFER = ("data_dir", "save", "log", "json", "quiet")
"""Options that may differ between ranks: where files are, and what is written."""

OPTIONS = "start all ranks with the same options"
DATA = "give all ranks the same samples in the same order"
SNAPSHOT = "restore on all ranks what they had at one step"
SAME_MODEL = "build the same model on all ranks"
MODEL = "initialise all ranks from the same seed, or load the same file"


class Item(NamedTuple):
    """Something that must be the same on all ranks."""

    what: str
    digest: int
    remedy: str


def check_inputs(comm: Comm, config: Config, dataset: Dataset) -> None:
    """Raises on all ranks if options or data differ.

    Every rank calls it before anything else that communicates depends on them.
    """
    _check(comm, list(_items(config, dataset)))


def check_snapshot(comm: Comm, config: Config, state: StepState) -> None:
    """Raises on all ranks if their options differ, or their snapshots are of different steps.

    Every rank calls it before anything else that communicates depends on them.
    """
    what, digest = f"the snapshot (of step {state.step})", _digest(repr(state).encode())
    _check(comm, [*_option_items(config), Item(what, digest, SNAPSHOT)])


def check_model(comm: Comm, model: Module) -> None:
    """Raises on all ranks if the names and shapes of the model differ. Every rank calls it."""
    shapes = repr([(place.path, place.shape) for place, _ in model.tensors()])
    what = "the names and shapes of parameters and buffers"
    _check(comm, [Item(what, _digest(shapes.encode()), MODEL)])


def check_graph(comm: Comm, graph: Graph) -> None:
    """Raises on all ranks if their models compute in another order. Every rank calls it."""
    nodes = [(n.name, n.kind, n.inputs, n.outputs, n.variables) for n in graph.nodes]
    edges = [(edge.axes, edge.dtype) for edge in graph.edges]
    what = "what the model computes, layer by layer"
    _check(comm, [Item(what, _digest(repr((nodes, edges)).encode()), SAME_MODEL)])


def _check(comm: Comm, items: Sequence[Item]) -> None:
    rows = np.zeros((comm.size, len(items)), np.uint64)
    rows[comm.rank] = [item.digest for item in items]
    comm.all_gather(rows)
    different = np.flatnonzero(rows[comm.rank] != rows[0])
    error: ValueError | None = None
    if different.size:
        item = items[different[0]]
        error = ValueError(f"rank {comm.rank} differs from rank 0 in {item.what}; {item.remedy}")
    comm.agree(error)


def check_values(comm: Comm, model: Module, held: Callable[[str], bool] = everything) -> None:
    """Raises on all ranks if initial values differ between ranks with the same part of a tensor.

    Every rank calls it (see PartTable).
    """
    error: ValueError | None = None
    found = first_difference(comm, model, PartTable(model, comm, held))
    if found is not None:
        path, other = found
        error = ValueError(
            f"rank {comm.rank} differs from rank {other} in the initial values of {path}; {MODEL}"
        )
    comm.agree(error)


def _option_items(config: Config) -> Iterator[Item]:
    for option in options():
        if option.name not in MAY_DIFFER:
            value = getattr(config, option.name)
            yield Item(f"{option.name} ({value!r:.60})", _digest(repr(value).encode()), OPTIONS)


def _items(config: Config, d: Dataset) -> Iterator[Item]:
    yield from _option_items(config)
    for name, split in (("training", d.train), ("test", d.test)):
        n = len(split.y)
        yield Item(f"the number of {name} samples ({n:,})", n, DATA)
        yield Item(f"the labels of the {name} samples", _digest(*_content(split.y)), DATA)
        inputs = [(part.encode(), *_content(array)) for part, array in parts(split.x)]
        yield Item(f"the {name} samples", _digest(*chain(*inputs)), DATA)


def _content(array: Any) -> tuple[bytes, bytes]:
    """Shape and type, and the bytes to compare."""
    k = -(-array.nbytes // MAX_BYTES) or 1
    rows = np.ascontiguousarray(backend.to_host(array[::k] if array.ndim else array))
    return f"{array.shape} {array.dtype}".encode(), rows.tobytes()


def _digest(*parts: bytes) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        digest.update(part)
    return int.from_bytes(digest.digest(), "big")

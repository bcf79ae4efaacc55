"""Checks that all ranks start from the same options, data and model.

Ranks that differ would deadlock, or train to wrong results without an error.
"""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.comm import Comm
from nnmpi.data import Dataset
from nnmpi.data.inputs import Inputs, arrays, parts
from nnmpi.io.files.model_files import model_file
from nnmpi.nn import Module
from nnmpi.nn.graph import Graph
from nnmpi.nn.tensor_files import files_of
from nnmpi.options.config import Config, options
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import check_regular, reading
from nnmpi.parallel.agreement import all_or_none, gather_objects
from nnmpi.parallel.model.parts import ModelPart
from nnmpi.parallel.model.whole import first_difference
from nnmpi.parallel.step.executor import StepState
from nnmpi.parallel.strategy import AgreedError

MAX_BYTES = 16 << 20
"""The most bytes of an array or file that ranks compare. Of a larger array they compare every k-th
row, of a larger file blocks at equal distances."""

STRETCH = 1 << 16  # bytes

MAY_DIFFER = ("data_dir", "save", "log", "json", "quiet")
"""Options that may differ between ranks: paths, and where output is written."""

OPTIONS = "start all ranks with the same options"
FILES = "let all ranks read the same files, or copies of them"
DATA = "give all ranks the same samples in the same order"
MODEL = "initialise all ranks from the same seed, or load the same file"


Compared: TypeAlias = tuple[str, Any, str]
"""An item equal on all ranks: its name, its value (by `repr`), and the remedy."""


def check_inputs(comm: Comm, config: Config, dataset: Dataset) -> None:
    """Raises an error on all ranks if their options or data differ; every rank calls it before
    anything else that communicates depends on them."""
    items = _given(_options_of(config), OPTIONS)
    for name, split in (("training", dataset.train), ("test", dataset.test)):
        n = len(split.y)
        inputs = [(part, _described(array)) for part, array in parts(split.x)]
        items += [
            (f"the number of {name} samples ({n:,})", n, DATA),
            (f"the labels of the {name} samples", _described(split.y), DATA),
            (f"the {name} samples", inputs, DATA),
        ]
    check_same(comm, items)


def digest_of(dataset: Dataset) -> str:
    """Returns a hash of some rows of samples and labels, by which ranks compare data."""
    splits = (dataset.train, dataset.test)
    described = [(_described(split.y), *map(_described, arrays(split.x))) for split in splits]
    return f"{_digest(repr(described).encode()):016x}"


def check_snapshot(comm: Comm, config: Config, state: StepState, known: Mapping[str, Any]) -> None:
    """Raises an error on all ranks unless those that continue from snapshots have the same options,
    steps and counters (`state`), and measured figures (`known`). Every rank calls it before
    anything else that communicates depends on them."""
    label = f"the snapshot (of step {state.step})"
    item = (label, (state, known), "restore snapshots of the same step on all ranks")
    check_same(comm, [*_given(_options_of(config), OPTIONS), item])


def check_given(comm: Comm, given: Mapping[str, Any], remedy: str = OPTIONS) -> None:
    """Raises an error on all ranks if one of the values in `given`, by name, differs between ranks;
    the error ends with the text `remedy`. Every rank calls it."""
    check_same(comm, _given(given, remedy))


def check_weights(comm: Comm, path: str) -> None:
    """Raises an error on all ranks if the file for --load differs. Every rank calls it."""
    remedy = "name a safetensors file, one of torch.save, or a folder of GPT-2 or Llama"
    check_files(comm, f"--load {shown(path)}", lambda: files_of(model_file(path).source), remedy)


def check_files(comm: Comm, label: str, files: Callable[[], list[Path]], remedy: str) -> None:
    """Raises an error on all ranks if files (called `label` in the message) differ between ranks,
    or cannot be read on one of them; the second error ends with `remedy`. Every rank calls it."""
    digests = all_or_none(comm, lambda: [(f.name, _file_digest(f, remedy)) for f in files()])
    check_same(comm, [(label, digests, FILES)])


def _file_digest(path: Path, remedy: str) -> tuple[int, str]:
    """Returns the size of a file, and a hash of some of its blocks, by which ranks compare it. If
    it cannot be read, raises ValueError with a text that ends with `remedy`."""
    digest = hashlib.blake2b(digest_size=8)
    with reading(path, remedy):
        check_regular(path)
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            for begin in range(0, size, max(STRETCH, size * STRETCH // MAX_BYTES)):
                file.seek(begin)
                digest.update(file.read(STRETCH))
    return size, digest.hexdigest()


def check_samples(comm: Comm, x: Inputs) -> None:
    """Raises an error on all ranks if ranks were given different samples x. Every rank calls it."""
    inputs = [(part, _described(array)) for part, array in parts(x)]
    check_same(comm, [(f"the samples ({len(arrays(x)[0]):,})", inputs, DATA)])


def check_model(comm: Comm, model: Module) -> None:
    """Raises an error on all ranks if names or shapes of tensors differ. Every rank calls it."""
    shapes = [(place.path, place.shape) for place, _ in model.tensors()]
    check_same(comm, [("the names and shapes of parameters and buffers", shapes, MODEL)])


def check_graph(comm: Comm, graph: Graph) -> None:
    """Raises an error on all ranks if layers run in different orders. Every rank calls it."""
    nodes = [(n.name, n.kind, n.inputs, n.outputs, n.variables) for n in graph.nodes]
    edges = [(edge.axes, edge.dtype) for edge in graph.edges]
    trained = [(v.path, v.is_trained) for v in graph.variables if v.is_parameter]
    same = "build the same model on all ranks"
    items = [
        ("what the model computes, layer by layer", (nodes, edges), same),
        ("which parameters have requires_grad", trained, same),
    ]
    check_same(comm, items)


def check_same(comm: Comm, items: Sequence[Compared]) -> None:
    """Raises an error on all ranks if one of several values differs between ranks, with its name
    and remedy; every rank calls it. `items` are (name, value, remedy)."""
    rows = np.zeros((comm.size, len(items)), np.uint64)
    rows[comm.rank] = [_digest(repr(value).encode()) for _, value, _ in items]
    comm.all_gather(rows)
    different = np.flatnonzero(rows[comm.rank] != rows[0])
    error: ValueError | None = None
    if different.size:
        label, _, remedy = items[different[0]]
        error = ValueError(f"rank {comm.rank} differs from rank 0 in {label}; {remedy}")
    comm.agree(error)


def check_values(comm: Comm, part: ModelPart) -> None:
    """Raises an error on all ranks if ranks that have the same part of a parameter or buffer have
    different initial values for it. Every rank calls it."""
    error: ValueError | None = None
    difference = first_difference(part, comm)
    if difference is not None:
        path, other = difference
        error = ValueError(
            f"rank {comm.rank} differs from rank {other} in the initial values of {path}; {MODEL}"
        )
    comm.agree(error)


def check_copies(part: ModelPart, comm: Comm, step: int, buffers: bool) -> None:
    """Raises AgreedError, on all ranks, if copies of a parameter (or, with `buffers`, of a buffer)
    differ between ranks. Every rank calls it."""
    of_ranks = gather_objects(comm, first_difference(part, comm, buffers))
    for rank, difference in enumerate(of_ranks):
        if difference is not None:
            path, other = difference
            raise AgreedError(
                f"after step {step} ranks {other} and {rank} differ in {path}, of which both have "
                "a copy: change parameters and buffers in the same way on all ranks, or say how "
                "parts of a batch change a buffer (combine of register_buffer); if none of your "
                "code changes it, memory may be damaged"
            )


def _given(values: Mapping[str, Any], remedy: str) -> list[Compared]:
    return [(f"{name} ({_text(value)})", value, remedy) for name, value in values.items()]


def _text(value: Any) -> str:
    return "not given" if value is None else f"{value!r:.60}"


def _options_of(config: Config) -> dict[str, Any]:
    names = (option.name for option in options())
    return {name: getattr(config, name) for name in names if name not in MAY_DIFFER}


def _described(array: Any) -> tuple[Any, ...]:
    """Returns shape, type and hash of an array; of a large one, of every k-th row."""
    k = -(-array.size * array.dtype.itemsize // MAX_BYTES) or 1
    rows = np.ascontiguousarray(backend.to_host(array[::k] if array.ndim else array))
    return array.shape, str(array.dtype), _digest(rows.tobytes())


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big")

"""Exports a checkpoint as one file of the whole model, which is put together tensor by tensor.

    rank-00000   w 0..5   b 0..1  ─┐
    rank-00001   w 5..9           ─┴─►  w, then b ─►  model.safetensors

No model is built: the manifest says what the tensors are.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from nnmpi.arrays.dtypes import is_float, types_of
from nnmpi.comm import comm_self
from nnmpi.io.checkpoints.forms import TensorFact
from nnmpi.io.checkpoints.read import StoredCheckpoint
from nnmpi.io.checkpoints.schema import DamagedError
from nnmpi.io.files import saving
from nnmpi.nn.place import Place, Range
from nnmpi.optim.replica_state import RESIDUAL, of_one
from nnmpi.optim.state import state_places
from nnmpi.options.quoting import shown
from nnmpi.parallel.model.full_state import FullState, TensorSpec
from nnmpi.parallel.model.moves import VALUES, Arrays, Holder, MovedTensor
from nnmpi.parallel.model.nearest import Held
from nnmpi.parallel.model.snapshot import REPLICA, SavedRange, holder_of


def export(stored: StoredCheckpoint, out: str, optimizer: bool) -> list[str]:
    """Writes the model as a file or as a folder of GPT-2, and with `optimizer` its state beside it;
    returns the names of the files."""
    about, ranges = stored.about(), defaultdict[str, list[SavedRange]](list)
    for held in stored.snapshot().owned:
        ranges[held.path].append(held)
    for fact in about.tensors:
        if not ranges[fact.first]:
            raise DamagedError(f"no file has values of {shown(fact.first)}")
    name = stored.manifest.snapshot.config.model
    try:
        entries = of_model(about.tensors, ranges)
    except ValueError as error:
        raise DamagedError(f"its files do not have all values of a tensor: {error}") from error
    files = [saving.write_entries(out, entries, about.metadata, about.sizes, name)]
    if optimizer:
        files.append(str(Path(files[0]).with_suffix(".optimizer.safetensors")))
        entries = of_optimizer(about.tensors, ranges)
        index = [saving.HeaderRow(*row) for row in entries.index()]
        saving.write(files[1], index, (entry.value for entry in entries), {}, {})
    return files


def of_model(facts: Sequence[TensorFact], ranges: Mapping[str, Sequence[SavedRange]]) -> FullState:
    """The parameters and buffers as --save writes them: 16-bit parameters as float32."""
    rows, items = list[tuple[str, Arrays, Sequence[SavedRange]]](), list[TensorSpec]()
    for fact in facts:
        first = ranges[fact.first][0]
        dtype = first.values[0:0].dtype
        dtype = types_of(dtype).masters if fact.is_parameter and is_float(dtype) else dtype
        in_digest = fact.is_parameter and fact.name == fact.first
        items.append(TensorSpec(Place.of_whole(fact.name, first.shape), dtype, in_digest))
        rows.append((fact.name, ((VALUES, dtype),), ranges[fact.first]))
    return _entries(rows, items)


def of_optimizer(
    facts: Sequence[TensorFact], ranges: Mapping[str, Sequence[SavedRange]]
) -> FullState:
    """The optimizer state saved in a checkpoint, as entries with the names and arrays of
    `Trainer.optimizer_state_dict`: where replicas have their own, that of the first one, and the
    sums that count."""
    rows, items = list[tuple[str, Arrays, Sequence[SavedRange]]](), list[TensorSpec]()
    for fact in facts:
        if fact.is_trained and fact.name == fact.first:
            first = ranges[fact.name][0]
            arrays = tuple((name, row[0:0].dtype) for name, row in first.sums.items())
            rows.append((fact.name, arrays, ranges[fact.name]))
            dtypes, terms = dict(arrays), dict[str, int]()
            of_replicas = paths_of_replicas(ranges, fact.name)
            names = of_one([*first.sums, *of_replicas])
            for name in names[len(arrays) :]:
                paths = of_replicas[name][: None if name == RESIDUAL else 1]
                dtypes[name], terms[name] = ranges[paths[0]][0].values[0:0].dtype, len(paths)
                rows += [(path, ((VALUES, dtypes[name]),), ranges[path]) for path in paths]
            *state, count = state_places([Place.of_whole(fact.name, first.shape)], names)
            items += [
                TensorSpec(at, dtypes[name], terms=terms.get(name, 1))
                for at, name in zip(state, names, strict=True)
            ]
            items.append(TensorSpec(count, np.dtype(int), steps=first.steps))
    return _entries(rows, items)


def paths_of_replicas(paths: Iterable[str], tensor: str) -> dict[str, list[str]]:
    """The paths of each state array of a tensor that replicas have, those of the first replica
    first."""
    by_name = defaultdict[str, list[str]](list)
    for path in paths:
        start, name = path[: len(tensor) + 1], path[len(tensor) + 1 :].rpartition(REPLICA)[0]
        if name and start == f"{tensor}.":
            by_name[name].append(path)
    return by_name


def _entries(
    rows: Sequence[tuple[str, Arrays, Sequence[SavedRange]]], items: Sequence[TensorSpec]
) -> FullState:
    """Whole tensors that are read from files; a row has a tensor's name, its arrays, and the ranges
    that files have."""
    in_files, tensors = dict[Held, SavedRange](), list[MovedTensor]()
    for path, arrays, ranges in rows:
        in_files |= {
            (holder_of(saved, 0), saved.range._replace(tensor=path)): saved for saved in ranges
        }
        tensors.append(MovedTensor(path, ranges[0].shape, ranges[0].axes, arrays))

    def read(holder: Holder, have: Range, name: str, lo: int, hi: int) -> np.ndarray:
        return in_files[holder, have].array(name)[lo - have.lo : hi - have.lo]

    return FullState(comm_self(), tensors, items, [*in_files], lambda: read)

"""A checkpoint as one file of the whole model, put together one tensor at a time.

    rank-00000   w 0..5   b 0..1  ─┐
    rank-00001   w 5..9           ─┴─►  w, then b ─►  model.safetensors

No model is built: the manifest says what its tensors are.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnmpi.arrays.dtypes import is_float, named, wide
from nnmpi.nn.parameter import in_shape
from nnmpi.nn.place import Part, Place
from nnmpi.nn.stored import Form
from nnmpi.optim.state import STEP, name_of
from nnmpi.options.quoting import shown
from nnmpi.parallel.model.snapshot import RangeOf
from nnmpi.run.checkpoints.about import TensorFact
from nnmpi.run.checkpoints.located import DamagedError, InFile
from nnmpi.run.checkpoints.read import BlockReader, Found
from nnmpi.run.files import folders, saving


class WholeTensors:
    """The tensors of a checkpoint, read from its files; blocks are checked."""

    def __init__(self, found: Found) -> None:
        self._reader = BlockReader(found.folder, found.manifest)
        self._there = defaultdict[str, list[tuple[str, RangeOf[InFile]]]](list)
        for file in found.manifest.files:
            for one in file.ranges:
                self._there[one.path].append((file.name, one))

    def one(self, path: str) -> RangeOf[InFile]:
        """Some range of a tensor: place, types and steps of the others are the same."""
        if not self._there[path]:
            raise DamagedError(f"no file has numbers of {shown(path)}")
        return self._there[path][0][1]

    def whole(self, path: str, name: str | None = None) -> np.ndarray:
        """The values of a tensor, or its sum of this name, in C order."""
        first = self.one(path)
        value = np.empty(first.shape, named((first.sums[name] if name else first.values)[0]))
        rows, left = dict[Part, np.ndarray](), value.size
        for file, one in self._there[path]:
            row = rows.setdefault(one.part, np.empty(one.place.size, value.dtype))
            there = one.sums[name] if name else one.values
            row[one.lo : one.hi] = self._reader.numbers(file, there, 0, one.hi - one.lo)
            left -= one.hi - one.lo
        if left:
            raise DamagedError(f"{left:,} of the {value.size:,} numbers of {shown(path)} are lost")
        for part, row in rows.items():
            place = first.place._replace(part=part)
            value[place.slices] = in_shape(row, place.local_shape, first.axes)
        return value


def export(found: Found, out: str, optimizer: bool) -> list[str]:
    """Writes the model, or a folder of GPT-2, and beside it the state of the optimizer; returns the
    names of the files."""
    about, whole = found.manifest.about(), WholeTensors(found)
    folders.check_kind(out, about.sizes, found.manifest.snapshot.config.model)
    with folders.prepared(out, about.sizes, about.metadata) as (file, form, metadata):
        _write_model(file, form, metadata, about.tensors, whole)
    if not optimizer:
        return [file]
    state = str(Path(file).with_suffix(".optimizer.safetensors"))
    _write_optimizer(state, about.tensors, whole)
    return [file, state]


def _write_model(
    file: str,
    form: Form,
    metadata: Mapping[str, str],
    facts: Sequence[TensorFact],
    whole: WholeTensors,
) -> None:
    """As --save writes it."""
    digest = hashlib.sha256()
    index = [
        saving.Info(name, _type(fact, whole), form.order(fact.name).shape(_place(fact, whole)))
        for fact in facts
        if (name := form.name(fact.name))
    ]

    def arrays() -> Iterator[np.ndarray]:
        for fact in facts:
            value = whole.whole(fact.first).astype(_type(fact, whole), copy=False)
            if fact.is_parameter and fact.name == fact.first:
                digest.update(value.tobytes())
            if form.name(fact.name):
                yield form.order(fact.name).there(value)

    saving.write(file, index, arrays(), metadata, {saving.PARAMETERS: digest.hexdigest})


def _type(fact: TensorFact, whole: WholeTensors) -> np.dtype[Any]:
    """Parameters of 16 bits are written as float32, like their copies that are trained."""
    dtype: np.dtype[Any] = named(whole.one(fact.first).values.dtype)
    return np.dtype(wide(dtype)) if fact.is_parameter and is_float(dtype) else dtype


def _place(fact: TensorFact, whole: WholeTensors) -> tuple[int, ...]:
    return whole.one(fact.first).shape


def _write_optimizer(file: str, facts: Sequence[TensorFact], whole: WholeTensors) -> None:
    """As `Trainer.optimizer_state_dict` has it."""
    trained = [f.first for f in facts if f.is_trained and f.name == f.first]
    rows = [(path, name) for path in trained for name in (*whole.one(path).sums, STEP)]

    def info(path: str, name: str) -> saving.Info:
        one, place = whole.one(path), Place.of_whole(path, ())
        if name == STEP:
            return saving.Info(name_of(place, name), np.dtype(int), ())
        return saving.Info(name_of(place, name), named(one.sums[name].dtype), one.shape)

    def value(path: str, name: str) -> np.ndarray:
        return np.array(whole.one(path).steps) if name == STEP else whole.whole(path, name)

    saving.write(file, [info(*row) for row in rows], (value(*row) for row in rows), {}, {})

"""State dicts and buffers: how files have them, as values; checks of what is given, and its copies
into a model.

file  ── found: names ──► paths here     order.here(array) ──►  model
      ◄── name ────────  path here       order.there(array)
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd import Tensor, on_host
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.options.quoting import shown


class StorageOrder(NamedTuple):
    """How a file has the numbers of a tensor, whose first axis are outputs in a model.

    is_transposed   outputs are its last axis there
    heads           outputs there are q of all heads, then k, then v; here q, k, v of each head
    """

    is_transposed: bool = False
    heads: int = 0

    def to_model(self, array: np.ndarray) -> np.ndarray:
        """The whole tensor as a model has it; a view where it can be."""
        array = array.T if self.is_transposed else array
        return _swapped(array, 3, self.heads) if self.heads else array

    def to_file(self, array: np.ndarray) -> np.ndarray:
        """The inverse of `here`, in C order."""
        array = _swapped(array, self.heads, 3) if self.heads else array
        return np.ascontiguousarray(array.T if self.is_transposed else array)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape here of a tensor of this shape there."""
        return shape[::-1] if self.is_transposed else shape


AS_IS = StorageOrder()


class FileFormat:
    """Names of tensors in a kind of file, and their order there; by default those of a model."""

    def names_by_path(self, names: Iterable[str]) -> dict[str, str]:
        """The names in a file by the paths here; those of no tensor of the model are left out."""
        return {name: name for name in names}

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Pairs of names in a file that are one tensor of the model, so both have to be equal."""
        return []

    def name(self, path: str) -> str | None:
        """The name in a file that is written; None for what it does not have."""
        return path

    def order(self, path: str) -> StorageOrder:
        """How a file has the numbers of a tensor."""
        return AS_IS


PLAIN = FileFormat()


def _swapped(outputs: np.ndarray, a: int, b: int) -> np.ndarray:
    """Rows in the order (b, a, rest), of rows in the order (a, b, rest)."""
    if len(outputs) % (a * b):
        raise ValueError(f"{len(outputs)} rows are not {a} x {b} equal parts")
    parts = outputs.reshape(a, b, -1, *outputs.shape[1:])
    return parts.swapaxes(0, 1).reshape(outputs.shape)


def checked_arrays(
    state: Mapping[str, Any], places: Sequence[Place], owner: str = "model"
) -> dict[str, np.ndarray]:
    """The arrays of a state on the host; raises ValueError unless names and shapes fit."""
    paths = (place.path for place in places)
    values = {path: on_host(state[path]) for path in paths if path in state}
    check_state(state, values, places, owner)
    return values


class LoadedKeys(NamedTuple):
    """The result of `load_state_dict`: names that only the model has, or only the state."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    targets: Sequence[tuple[Place, Parameter | Array]], state: Mapping[str, Any], strict: bool
) -> LoadedKeys:
    """Copy a state into parameters and buffers; raises ValueError, and copies nothing, unless
    shapes fit and, if `strict`, names do."""
    known = {place.path: place for place, _ in targets}
    missing = [path for path in known if path not in state]
    unexpected = [name for name in state if name not in known]
    if not strict:
        state = {name: value for name, value in state.items() if name in known}
        targets = [(place, target) for place, target in targets if place.path in state]
    try:
        values = checked_arrays(state, [place for place, _ in targets])
    except ValueError as error:
        remedy = "" if strict else "; strict=False is for names: leave these out of the state"
        raise ValueError(f"{error}{remedy}") from None
    for place, target in targets:
        assign(target, values[place.path][place.slices])
    return LoadedKeys(missing, unexpected)


def check_state(
    names: Iterable[str],
    values: Mapping[str, Any],
    places: Sequence[Place],
    owner: str = "model",
) -> None:
    """Raises ValueError unless the names are those of the places, and the values have their shapes.

    `values` has those of the names that are known, or what else has a shape and a dtype. The
    message begins with names that are not known, since they may be mistyped.
    """
    known = {place.path for place in places}
    problems = [f"{shown(name)} is not part of this {owner}" for name in names if name not in known]
    for path, shape, *_ in places:
        if path not in values:
            problems.append(f"{path} {shape} is missing")
            continue
        value = values[path]
        if value.shape != shape:
            problems.append(f"{path} has shape {value.shape}, the {owner} needs {shape}")
        elif value.dtype.kind not in "iub" and not is_float(value.dtype):
            problems.append(f"{path} holds {value.dtype}, not numbers")
    if problems:
        more = f" and {len(problems) - 4} more" if len(problems) > 4 else ""
        raise ValueError(f"state does not fit: {'; '.join(problems[:4])}{more}")


def assign(target: Any, value: np.ndarray) -> None:
    """Copy a host array into a parameter or a buffer, on any backend."""
    array = target.operand if isinstance(target, Tensor) else target
    array[...] = backend.of(array).asarray(value, array.dtype)
    if isinstance(target, Tensor):
        target.mark_written()
    if isinstance(target, Parameter):
        target.seed = None  # no longer the values that were drawn

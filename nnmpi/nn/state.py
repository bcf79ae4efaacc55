"""State dicts and buffers: how files store them, as values; checks of a given state, and copies of
it into a model.

file  ── names_by_path: names ──► paths     order.to_model(array) ──►  model
      ◄── name ─────────────────  path      order.to_file(array)
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
    """How a file stores the elements of a tensor, whose first axis in the model is the outputs.

    is_transposed   the outputs are the last axis in the file
    heads           with this many attention heads, the file has q of all heads, then k, then v; the
                    model has q, k, v of each head
    """

    is_transposed: bool = False
    heads: int = 0

    def to_model(self, array: np.ndarray) -> np.ndarray:
        """Returns a whole tensor of a file as the model has it, as a view if possible."""
        array = array.T if self.is_transposed else array
        return _swapped(array, 3, self.heads) if self.heads else array

    def to_file(self, array: np.ndarray) -> np.ndarray:
        """Returns a whole tensor of the model as a file has it, in C order: the inverse of
        `to_model`."""
        array = _swapped(array, self.heads, 3) if self.heads else array
        return np.ascontiguousarray(array.T if self.is_transposed else array)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the shape in the model of a tensor with this shape in a file."""
        return shape[::-1] if self.is_transposed else shape


AS_IS = StorageOrder()


class FileFormat:
    """The names of tensors in a kind of file, and their storage order; by default those of the
    model."""

    def names_by_path(self, names: Iterable[str]) -> dict[str, str]:
        """Returns the names in a file by path in the model, without names that are no tensor of the
        model."""
        return {name: name for name in names}

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns pairs of names in a file that are one tensor of the model, and so must be
        equal."""
        return []

    def name(self, path: str) -> str | None:
        """Returns the name to write a tensor under, or None if the file leaves it out."""
        return path

    def order(self, path: str) -> StorageOrder:
        """Returns how a file stores the elements of a tensor."""
        return AS_IS


PLAIN = FileFormat()


def _swapped(outputs: np.ndarray, a: int, b: int) -> np.ndarray:
    """Returns the rows of an array, which are in the order (a, b, rest), in the order (b, a,
    rest)."""
    if len(outputs) % (a * b):
        raise ValueError(f"{len(outputs)} rows are not {a} x {b} equal parts")
    parts = outputs.reshape(a, b, -1, *outputs.shape[1:])
    return parts.swapaxes(0, 1).reshape(outputs.shape)


def checked_arrays(
    state: Mapping[str, Any], places: Sequence[Place], owner: str = "model"
) -> dict[str, np.ndarray]:
    """Returns the arrays of a state on the host; raises ValueError unless names and shapes fit."""
    paths = (place.path for place in places)
    values = {path: on_host(state[path]) for path in paths if path in state}
    check_state(state, values, places, owner)
    return values


class LoadedKeys(NamedTuple):
    """The result of `load_state_dict`: the names that only the model has, and those that only the
    state has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    targets: Sequence[tuple[Place, Parameter | Array]], state: Mapping[str, Any], strict: bool
) -> LoadedKeys:
    """Copies a state into parameters and buffers, and returns the names that do not match.

    Raises ValueError, before anything is copied, unless the shapes fit and, if `strict`, the names.
    """
    known = {place.path: place for place, _ in targets}
    missing = [path for path in known if path not in state]
    unexpected = [name for name in state if name not in known]
    if not strict:
        state = {name: value for name, value in state.items() if name in known}
        targets = [(place, target) for place, target in targets if place.path in state]
    try:
        values = checked_arrays(state, [place for place, _ in targets])
    except ValueError as error:
        remedy = "" if strict else "; strict=False ignores names only: leave these out of the state"
        raise ValueError(f"{error}{remedy}") from None
    # after all checks, so that a state that does not fit changes nothing
    for place, target in targets:
        assign(target, values[place.path][place.slices])
    return LoadedKeys(missing, unexpected)


def check_state(
    names: Iterable[str],
    values: Mapping[str, Any],
    places: Sequence[Place],
    owner: str = "model",
) -> None:
    """Raises ValueError unless `names` are those of the places, and the values have their shapes.

    `values` has, for the known names, arrays or anything else with a shape and a dtype. The message
    begins with unknown names, since they may be mistyped.
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
    """Copies a host array into a parameter or a buffer, on any backend."""
    array = target.operand if isinstance(target, Tensor) else target
    array[...] = backend.of(array).asarray(value, array.dtype)
    if isinstance(target, Tensor):
        target.mark_written()
    if isinstance(target, Parameter):
        target.seed = None  # no longer the initial values

"""State dicts in files and models: the names and the order of elements in a file, checks of a given
state, and copying it into a model.

file  ── names_by_path: names ──► paths     order.to_model(arrays) ──►  model
      ◄── names ────────────────  path      order.to_files(array)
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.dtypes import is_float
from nnmpi.autograd import Tensor, on_host
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.options.quoting import shown

Placed: TypeAlias = Sequence[tuple[Place, Any]]
"""Parameters and buffers with their places."""


def everything(path: str) -> bool:
    """True for each path: `held` of `which_held` on a rank with a part of every tensor."""
    return True


def which_held(tensors: Placed, held: Callable[[str], bool]) -> list[bool]:
    """Returns for each entry of `Module.tensors()` whether this rank has a part of it: whether
    held(path) is true for one of the paths of the tensor."""
    ids = {id(tensor) for place, tensor in tensors if held(place.path)}
    return [id(tensor) in ids for _, tensor in tensors]


class StorageOrder(NamedTuple):
    """The order of a tensor's elements in a file. In the model, axis 0 is that of the outputs.

    is_transposed   whether the file has the outputs on the last axis
    groups          if not 0, the file has several matrices, such as those of queries, keys and
                    values; the model has this many groups of rows (such as heads), each with a
                    share of the rows of every matrix
    shares          the relative numbers of rows in a group that belong to each matrix: (1, 1, 1)
                    for the query, the key and the value of a head
    """

    is_transposed: bool = False
    groups: int = 0
    shares: tuple[int, ...] = (1,)

    def to_model(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the tensor in the model's order from a file's tensors; a view if possible."""
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        array = array.T if self.is_transposed else array
        return array[self._rows(len(array))] if self.groups else array

    def to_files(self, array: np.ndarray, files: int) -> list[np.ndarray]:
        """The inverse of `to_model`: a file's tensors for one of the model, in C order."""
        array = array[np.argsort(self._rows(len(array)))] if self.groups else array
        arrays = [array] if files == 1 else np.split(array, self._ends(len(array)))
        return [np.ascontiguousarray(a.T if self.is_transposed else a) for a in arrays]

    def shape(self, shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
        """Returns a tensor's shape in the model, given those in a file."""
        if len(shapes) == 1:
            return shapes[0][::-1] if self.is_transposed else shapes[0]
        joined = sum(shape[0] for shape in shapes if shape), *shapes[0][1:]
        # shapes that do not belong together make one that no tensor has
        return joined if [*shapes] == self.shapes(joined, len(shapes)) else sum(shapes, ())

    def shapes(self, shape: tuple[int, ...], files: int) -> list[tuple[int, ...]]:
        """Returns the shapes of a file's tensors for one of this shape in the model."""
        if files == 1:
            return [shape[::-1] if self.is_transposed else shape]
        return [(b - a, *shape[1:]) for a, b in pairwise([0, *self._ends(shape[0]), shape[0]])]

    def _ends(self, rows: int) -> list[int]:
        """Returns the rows at which the file's matrices end (see `groups`), but for the last."""
        return [end * rows // sum(self.shares) for end in accumulate(self.shares[:-1])]

    def _rows(self, rows: int) -> np.ndarray:
        """Returns the number in the file of each row of the tensor (see `groups`)."""
        matrices = np.split(np.arange(rows), self._ends(rows))
        return np.concatenate([m.reshape(self.groups, -1) for m in matrices], axis=1).ravel()


AS_IS = StorageOrder()


class FileFormat:
    """Names and storage order of tensors in a kind of file; the model's by default."""

    def names_by_path(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Returns a file's names for each path in the model, given all its names."""
        return {name: (name,) for name in names}

    def tied(self, names: Iterable[str]) -> list[tuple[str, str]]:
        """Returns pairs of names in a file that stand for one tensor, and must be equal."""
        return []

    def names(self, path: str) -> tuple[str, ...]:
        """Returns a file's names of the tensor at a path; none if it leaves it out."""
        return (path,)

    def order(self, path: str) -> StorageOrder:
        """Returns the order in which a file stores the elements of the tensor at a path."""
        return AS_IS

    def arrays(self, path: str, array: np.ndarray) -> dict[str, np.ndarray]:
        """Returns by name the arrays that a file stores for the tensor at a path."""
        names = self.names(path)
        arrays = self.order(path).to_files(array, len(names)) if names else []
        return dict(zip(names, arrays, strict=True))

    def shapes(self, path: str, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Returns by name the shapes of the arrays that a file stores for the tensor at a path."""
        names = self.names(path)
        shapes = self.order(path).shapes(shape, len(names)) if names else []
        return dict(zip(names, shapes, strict=True))


PLAIN = FileFormat()


def checked_arrays(
    state: Mapping[str, Any], places: Sequence[Place], owner: str = "model"
) -> dict[str, np.ndarray]:
    """Returns the arrays of a state dict, by name, on the host; raises ValueError unless names and
    shapes are those of `places`. `owner` is the noun for messages, such as "model"."""
    paths = (place.path for place in places)
    values = {path: on_host(state[path]) for path in paths if path in state}
    check_state(state, values, places, owner)
    return values


class LoadedKeys(NamedTuple):
    """Names that only the model has, and that only the loaded state has."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_into(
    targets: Sequence[tuple[Place, Tensor]], state: Mapping[str, Any], strict: bool
) -> LoadedKeys:
    """Copies a state into `targets`, and returns the names that do not match. Raises ValueError,
    before it copies anything, if a shape or, with `strict`, a name does not fit."""
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
    names: Iterable[str], values: Mapping[str, Any], places: Sequence[Place], owner: str = "model"
) -> None:
    """Raises ValueError unless a state has exactly the names and shapes of `places`.

    names    all names in the state
    values   for each of them that the model has, an array or another object with shape and dtype
    owner    the noun for messages, such as "model"
    """
    wanted = {place.path: place.shape for place in places}
    missing = [f"{path} {shape}" for path, shape in wanted.items() if path not in values]
    unknown = [shown(name) for name in names if name not in wanted]
    wrong = list[str]()
    for path, shape in wanted.items():
        if path not in values:
            continue
        value = values[path]
        if value.shape != shape:
            wrong.append(f"{path} has shape {value.shape}, the {owner} needs {shape}")
        elif value.dtype.kind not in "iub" and not is_float(value.dtype):
            wrong.append(f"{path} holds {value.dtype}, not numbers")
    problems = [
        *([f"only the {owner} has {_some(missing, ', ')}"] if missing else []),
        *([f"only the state has {_some(unknown, ', ')}"] if unknown else []),
        *([_some(wrong, "; ")] if wrong else []),
    ]
    if problems:
        raise ValueError(f"state does not fit: {'; '.join(problems)}")


def _some(texts: Sequence[str], separator: str) -> str:
    """Returns the first four texts, and how many more there are."""
    more = f" and {len(texts) - 4} more" if len(texts) > 4 else ""
    return separator.join(texts[:4]) + more


def assign(target: Tensor, value: np.ndarray) -> None:
    """Copies a host array into a parameter or a buffer, on any backend."""
    array = target._array
    array[...] = backend.of(array).asarray(value, array.dtype)
    target.storage.mark_written()
    if isinstance(target, Parameter):
        target.values_written()

"""Reads state dictionaries from safetensors files, also those saved by PyTorch users.

Files of `torch.save` are read by an add-on.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, overload

import numpy as np

from nnmpi.arrays import backend
from nnmpi.autograd import Tensor
from nnmpi.io.files.model_files import model_file
from nnmpi.io.files.saving import BLANK, FILE, STRUCTURE, file_sha256, place_of
from nnmpi.nn import Module, tensor_files
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place
from nnmpi.nn.state import assign, check_state, everything, which_held
from nnmpi.nn.tensor_files import STATE_FILES
from nnmpi.options.quoting import shown


class Loaded(NamedTuple):
    """The names of the tensors that a model took from a file, and of those that do not fit.

    missing        names that only the model has
    other_shapes   maps names to the shapes in the file and in the model, if these differ
    left_over      names that only the file has
    """

    file: str
    loaded: list[str]
    missing: list[str]
    other_shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    left_over: list[str]


@overload
def load(
    path: str | os.PathLike[str] | IO[bytes],
    map_location: Any = ...,
    *,
    with_metadata: Literal[False] = ...,
    weights_only: bool = ...,
) -> Any: ...


@overload
def load(
    path: str | os.PathLike[str] | IO[bytes],
    map_location: Any = ...,
    *,
    with_metadata: Literal[True],
    weights_only: bool = ...,
) -> tuple[Any, dict[str, str]]: ...


def load(
    path: str | os.PathLike[str] | IO[bytes],
    map_location: Any = None,
    *,
    with_metadata: bool = False,
    weights_only: bool = True,
) -> Any:
    """Reads a file and returns its state; with `with_metadata`, returns the state and the metadata.

    The file may be one that `save` has written, any safetensors file, an index of shards, or a file
    of `torch.save`; an open file is accepted too.

    Arrays of the state are tensors, on the device `map_location`; on the CPU if it is None, or one
    of PyTorch's functions or dicts of devices. bfloat16 needs the package ml_dtypes; without it
    such tensors are read as float32. Files of `torch.save` are pickles, which name functions to
    call. None of them is called: tensors, dicts, lists, tuples, sets, numbers, strings and types
    are read, and an object of another class is refused with its name. So `weights_only` changes
    nothing.
    """
    if hasattr(path, "read"):
        state, metadata = STATE_FILES.needed("streams").load(path, map_location)
        return (state, metadata) if with_metadata else state
    is_device = isinstance(map_location, str | backend.Backend)
    on = backend.get(map_location) if is_device else backend.CPU

    def tensor(array: np.ndarray, requires_grad: bool = False) -> Tensor:
        return Tensor(on.asarray(array), requires_grad)

    if tensor_files.is_pickle(Path(path)):
        state = STATE_FILES.needed("pickle")(path, tensor)
        return (state, {}) if with_metadata else state
    check_digest(path)
    stored = tensor_files.stored_in(Path(path))
    state = {name: tensor(in_file.read()) for name, in_file in stored.items()}
    metadata = read_metadata(path)
    if text := metadata.get(STRUCTURE):
        state = STATE_FILES.needed("nested").restored(text, state, path)
    return (state, metadata) if with_metadata else state


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the metadata of a model's file or folder; none of an index of shards."""
    return tensor_files.metadata_of(model_file(path).source)


def check_content(path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a file or folder has changed since it was saved, or a tensor under two
    names differs. Reads the whole file, in pieces, but none of PyTorch, which has no digest."""
    file = model_file(path)
    check_digest(file.source)
    if not tensor_files.is_pickle(file.source):
        tensor_files.check_tied(file.source, file.form())


def check_digest(path: str | os.PathLike[str]) -> None:
    """Raises ValueError if a file, or a shard of an index, has changed since nnmpi saved it; files
    of other programs have no digest."""
    for part in tensor_files.files_of(Path(path)):
        if FILE not in tensor_files.metadata_of(part):
            continue
        with tensor_files.refused(part), part.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            file.seek(0)
            header = file.read(8 + length)
            place = place_of(header, FILE)
            saved = header[place : place + len(BLANK)].decode() if place > 0 else "not a digest"
            digest = file_sha256(file, place) if place > 0 else ""
        if saved != digest:
            raise ValueError(
                f"cannot load {shown(part)}: it is damaged, or was changed after it was saved: its "
                f"SHA-256 is {digest:.12}..., and its metadata say {saved:.12}...; take an intact "
                f"copy, or, if you changed it, remove {FILE} from its metadata"
            )


def load_into(
    path: str | os.PathLike[str],
    model: Module,
    held: Callable[[str], bool] = everything,
    partial: bool = False,
) -> Loaded:
    """Copies the tensors of a file, or this rank's parts (`held`), into a model, one at a time. All
    names, shapes and types are checked first; with `partial`, what does not fit is skipped."""
    tensors, file = list(model.tensors()), model_file(path)
    sources = tensor_files.sources_in(file.source, file.form())
    loaded = _checked(path, sources, [place for place, _ in tensors], partial)
    both, fits = zip(tensors, which_held(tensors, held), strict=True), {*loaded.loaded}
    held_targets = [
        (place, target)
        for (place, target), is_held in both
        if is_held and place.size and place.path in fits
    ]
    for place, target in held_targets:
        value = sources[place.path].read(place)
        if isinstance(target, Parameter):
            _check_finite(f"--load {path}: {place.path}", value, target.dtype)
        assign(target, value)
    return loaded


def _check_finite(name: str, value: np.ndarray, dtype: Any) -> None:
    """Raises ValueError unless all values are finite in type `dtype`; makes no copy."""
    with np.errstate(over="ignore", invalid="ignore"):
        extremes = np.array([value.min(), value.max()])
        converted = extremes.astype(dtype)
    if not np.isfinite(converted).all():
        wrong = extremes[~np.isfinite(converted)][0]
        why = f"is too large for {np.dtype(dtype)}" if np.isfinite(wrong) else "is not finite"
        raise ValueError(f"{name} has the value {wrong}, which {why}; load another file")


def _checked(
    path: str | os.PathLike[str],
    sources: Mapping[str, tensor_files.StoredTensor],
    places: Sequence[Place],
    partial: bool,
) -> Loaded:
    """Compares the names and shapes of a file's tensors with those of a model; raises ValueError
    unless all fit or, with `partial`, some do."""
    in_model = {place.path: place.shape for place in places}
    pairs = {name: (sources[name].shape, in_model[name]) for name in in_model if name in sources}
    loaded = Loaded(
        str(path),
        [name for name, (in_file, wanted) in pairs.items() if in_file == wanted],
        [name for name in in_model if name not in sources],
        {name: shapes for name, shapes in pairs.items() if shapes[0] != shapes[1]},
        [name for name in sources if name not in in_model],
    )
    if partial and loaded.loaded:
        sources = {name: sources[name] for name in loaded.loaded}
        places = [place for place in places if place.path in sources]
    try:
        check_state(sources, sources, places)
    except ValueError as error:
        prefix = "" if loaded.loaded or not partial else "no tensor in it fits the model: "
        takes = "to train with the tensors that fit, add --load-partial"
        other = (
            "choose the model that was saved (MODULE:FUNCTION for your own), or load another file"
        )
        remedy = takes if loaded.loaded and not partial else other
        raise ValueError(f"--load {path}: {prefix}{error}; {remedy}") from None
    return loaded

"""State dictionaries as safetensors files, with PyTorch's names and shapes."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file

from nnmpi.nn import Module
from nnmpi.nn.parameter import Parameter
from nnmpi.nn.place import Place, whole
from nnmpi.nn.state import assign, check_state
from nnmpi.parallel.model.entries import Entries
from nnmpi.parallel.model.parts import everything, which_held

TYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The name in the file format of each NumPy type."""


class NotSavedError(ValueError):
    """The file cannot be written."""


class Info(NamedTuple):
    """A tensor's line in the header of a file."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def save(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state dictionary to a file, whole or not at all: a failure leaves an old file."""
    arrays = {name: np.asarray(a) for name, a in state.items()}
    write(path, [Info(name, a.dtype, a.shape) for name, a in arrays.items()], arrays.values())


def write_entries(path: str | None, entries: Entries) -> None:
    """Writes a model where there is a path; other ranks send their parts, even if that fails."""
    arrays = (entry.value for entry in entries)
    try:
        if path:
            write(path, [Info(*info) for info in entries.index()], arrays)
    finally:
        for _ in arrays:
            pass


def write(
    path: str | os.PathLike[str], index: Sequence[Info], arrays: Iterable[np.ndarray]
) -> None:
    """Write tensors that are produced one at a time, in the order of `index`.

    The writer of the safetensors library needs all tensors at once. This is its format:

        8 bytes   length of the header, little-endian
        header    JSON: {name: {dtype, shape, data_offsets}}, padded with spaces
        data      tensors in C order and little-endian, the widest types first for alignment
    """
    path = Path(path)
    check_target(path)
    header, starts = _header(path, index)
    try:
        with replaced(path, "xb") as file:
            file.write(header)
            for start, array in zip(starts, arrays, strict=True):
                file.seek(start)
                little = array.astype(array.dtype.newbyteorder("<"), copy=False)
                file.write(little.tobytes())
    except OSError as error:
        reason = error.strerror or error
        raise NotSavedError(f"cannot save {path}: {reason}; name another place") from None


@contextmanager
def replaced(path: Path, mode: str) -> Iterator[IO[Any]]:
    """A new file that replaces `path` when it is complete; a failure leaves an old file."""
    part = path.with_name(f".nnmpi-{uuid4().hex}.part")  # `path.part` might be too long a name
    try:
        with part.open(mode) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        with suppress(OSError):
            part.unlink()


def _header(path: Path, index: Sequence[Info]) -> tuple[bytes, list[int]]:
    """The bytes before the data, and the position of each tensor in the file."""
    header: dict[str, dict[str, Any]] = {}
    end = 0
    for name, dtype, shape in sorted(index, key=lambda info: -info.dtype.itemsize):
        if dtype.name not in TYPES:
            raise NotSavedError(
                f"cannot save {path}: {name} has type {dtype}; convert it to one of "
                f"{', '.join(TYPES)}"
            )
        start, end = end, end + math.prod(shape) * dtype.itemsize
        offsets = [start, end]
        header[name] = {"dtype": TYPES[dtype.name], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    first = 8 + len(text)
    starts = [first + header[info.name]["data_offsets"][0] for info in index]
    return len(text).to_bytes(8, "little") + text, starts


def check_target(path: str | os.PathLike[str], what: str = "save") -> None:
    """Raises NotSavedError if no file can be written at `path`; called before a run trains."""
    path = Path(path)
    try:
        path.lstat()
    except FileNotFoundError:
        pass  # the usual case
    except OSError as error:
        raise NotSavedError(f"cannot {what} {path}: {error.strerror}; name another place") from None
    if not path.parent.is_dir():
        raise NotSavedError(
            f"cannot {what} {path}: there is no directory {path.parent}; make it first"
        )
    if path.is_dir():
        raise NotSavedError(f"cannot {what} {path}: it is a directory; name a file in it")
    if path.exists() and not path.is_file():
        raise NotSavedError(f"cannot {what} {path}: it is a device or a pipe; name a file")
    if not os.access(path.parent, os.W_OK):
        raise NotSavedError(
            f"cannot {what} {path}: no permission to write in {path.parent}; name another place"
        )


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read a state dictionary from a safetensors file."""
    with _refused(path):
        return load_file(path)


def load_into(
    path: str | os.PathLike[str], model: Module, held: Callable[[str], bool] = everything
) -> None:
    """Copy the tensors of a file that this rank holds into a model, one at a time.

    All names, shapes and types are checked first, as `load` and `load_state_dict` do. Then only
    what is here is read: of a tensor of which this rank has a part, that part.
    """
    tensors = list(model.tensors())
    both = zip(tensors, which_held(tensors, held), strict=True)
    here = [(place, target) for (place, target), is_held in both if is_held and place.size]
    values = _parts(path, [place for place, _ in tensors], [place for place, _ in here])
    for value, (_, target) in zip(values, here, strict=True):
        assign(target, value)
        if isinstance(target, Parameter):
            target.seed = None


def _parts(
    path: str | os.PathLike[str], places: Sequence[Place], here: Iterable[Place]
) -> Iterator[np.ndarray]:
    """Checks a file against all places, and reads the parts that are here."""
    with _refused(path), safe_open(path, framework="numpy") as file:
        names = file.keys()  # the file itself cannot be iterated over
        infos = {name: _info(file, name) for name in names}
        try:
            check_state(infos, infos, places)
        except ValueError as error:
            raise ValueError(f"--load {path}: {error}") from None
        for place in here:
            yield _part(file, place)


def _info(file: Any, name: str) -> Info:
    """What the file says of a tensor; the library makes the type with the first number of it."""
    shape = tuple(file.get_slice(name).get_shape())
    first = whole(shape) if 0 in shape else whole((1,) * len(shape))
    return Info(name, _part(file, Place(name, shape, first)).dtype, shape)


def _part(file: Any, place: Place) -> np.ndarray:
    """A part of a tensor; `get_slice` refuses an axis of length 0."""
    if place.part == whole(place.shape):
        return np.asarray(file.get_tensor(place.path))
    return np.asarray(file.get_slice(place.path)[place.slices])


@contextmanager
def _refused(path: str | os.PathLike[str]) -> Iterator[None]:
    """While a file is read: raises ValueError of one line for what it cannot be."""
    path = Path(path)
    if not os.path.isfile(path):  # not path.is_file(), which raises for a name that is too long
        raise ValueError(f"cannot load {path}: no such file")
    try:
        yield
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"cannot load {path}: it has a type that NumPy lacks ({error}); "
            "save it as float32, or import ml_dtypes first"
        ) from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot load {path}: not a complete safetensors file ({error})") from None

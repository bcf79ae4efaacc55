"""State dictionaries as safetensors files, with PyTorch's names and shapes."""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

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
    part = path.with_name(f".nnmpi-{uuid4().hex}.part")  # `path.part` might be too long a name
    try:
        with part.open("xb") as file:
            file.write(header)
            for start, array in zip(starts, arrays, strict=True):
                file.seek(start)
                little = array.astype(array.dtype.newbyteorder("<"), copy=False)
                file.write(little.tobytes())
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        reason = error.strerror or error
        raise NotSavedError(f"cannot save {path}: {reason}; name another place") from None
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


def check_target(path: str | os.PathLike[str]) -> None:
    """Raises NotSavedError if no file can be written at `path`; called before a run trains."""
    path = Path(path)
    try:
        path.lstat()
    except FileNotFoundError:
        pass  # the usual case
    except OSError as error:
        raise NotSavedError(f"cannot save {path}: {error.strerror}; name another place") from None
    if not path.parent.is_dir():
        raise NotSavedError(
            f"cannot save {path}: there is no directory {path.parent}; make it first"
        )
    if path.is_dir():
        raise NotSavedError(f"cannot save {path}: it is a directory; name a file in it")
    if path.exists() and not path.is_file():
        raise NotSavedError(f"cannot save {path}: it is a device or a pipe; name a file")
    if not os.access(path.parent, os.W_OK):
        raise NotSavedError(
            f"cannot save {path}: no permission to write in {path.parent}; name another place"
        )


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """Read a state dictionary from a safetensors file."""
    path = Path(path)
    if not os.path.isfile(path):  # not path.is_file(), which raises for a name that is too long
        raise ValueError(f"cannot load {path}: no such file")
    try:
        return load_file(path)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"cannot load {path}: it has a type that NumPy lacks ({error}); "
            "save it as float32, or import ml_dtypes first"
        ) from None
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot load {path}: not a complete safetensors file ({error})") from None

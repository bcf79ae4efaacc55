"""State dictionaries in safetensors files, with PyTorch's names and shapes."""

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
    **{f"float{n}": f"F{n}" for n in (16, 32, 64)},
    **{f"{kind}int{n}": f"{kind or 'i'}{n}".upper() for n in (8, 16, 32, 64) for kind in ("", "u")},
    "bfloat16": "BF16",
    "bool": "BOOL",
}
"""The names that the format has for NumPy's types."""


class NotSavedError(ValueError):
    """A file cannot be written there."""


class Info(NamedTuple):
    """What a file's header says of a tensor."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def save(state: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write a state to a file: whole or not at all, so that an old file is never lost half-way."""
    arrays = {name: np.asarray(a, order="C") for name, a in state.items()}
    write(path, [Info(name, a.dtype, a.shape) for name, a in arrays.items()], arrays.values())


def write(
    path: str | os.PathLike[str], index: Sequence[Info], arrays: Iterable[np.ndarray]
) -> None:
    """The same for tensors that come one at a time, in the order of the index.

    The format is written here since the library's writer takes all tensors at once. A file is a
    length (8 bytes), a header in JSON, and the tensors, the widest types first to be aligned.
    """
    path = Path(path)
    check_target(path)
    part = path.with_name(f".nnmpi-{uuid4().hex}.part")  # short: the name may be as long as it can
    try:
        header, starts = _header(path, index)
        with part.open("xb") as file:
            file.write(header)
            for start, array in zip(starts, arrays, strict=True):
                file.seek(start)
                file.write(np.ascontiguousarray(array).tobytes())
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
    """The bytes before the tensors, and where each tensor starts in the file."""
    entries: dict[str, Any] = {}
    offset, offsets = 0, {}
    for info in sorted(index, key=lambda info: -info.dtype.itemsize):
        if info.dtype.name not in TYPES:
            raise NotSavedError(
                f"cannot save {path}: {info.name} is of type {info.dtype}; "
                f"the format has {', '.join(TYPES)}"
            )
        offsets[info.name] = offset
        entries[info.name] = {
            "dtype": TYPES[info.dtype.name],
            "shape": info.shape,
            "data_offsets": [offset, offset := offset + info.nbytes],
        }
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    base = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, [base + offsets[info.name] for info in index]


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a place where nothing can be saved: before a run, not after it."""
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
        raise NotSavedError(f"cannot save {path}: it is a device or a pipe, not a file")
    if not os.access(path.parent, os.W_OK):
        raise NotSavedError(f"cannot save {path}: no permission to write in {path.parent}")


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The state in a file."""
    path = Path(path)
    if not os.path.isfile(path):  # not path.is_file(), which raises for a name that is too long
        raise ValueError(f"cannot load {path}: there is no such file")
    try:
        return load_file(path)
    except (TypeError, AttributeError, KeyError) as error:
        raise ValueError(
            f"cannot load {path}: it holds numbers of a type that NumPy lacks ({error}); "
            "save it as float32 instead"
        ) from None
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"cannot load {path}: it is not a whole safetensors file ({error})"
        ) from None

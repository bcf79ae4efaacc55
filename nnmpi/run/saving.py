"""State dictionaries in safetensors files, with PyTorch's names and shapes."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from safetensors.numpy import save as to_bytes


class NotSavedError(ValueError):
    """There is no place for a file, or no room."""


def save(state: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Write a state to a file: whole or not at all, so that an old file is never lost half-way."""
    path = Path(path)
    check_target(path)
    part = path.with_name(f".nnmpi-{uuid4().hex}.part")  # short: the name may be as long as it can
    try:
        # not save_file: newer versions of it make files that only their owner may read
        content = to_bytes({name: np.asarray(a, order="C") for name, a in state.items()})
        with part.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise NotSavedError(f"cannot save {path}: {reason}; name another place") from None
    finally:
        with suppress(OSError):
            part.unlink()


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

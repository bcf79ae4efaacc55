"""State dictionaries in safetensors files, with PyTorch's names and shapes."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file


def save(state: Mapping[str, np.ndarray], path: str | os.PathLike[str]) -> None:
    """Write a state to a file: whole or not at all, so that an old file is never lost half-way."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot save {path}: there is no directory {path.parent}; make it first")
    part = path.with_name(f"{path.name}.part")
    try:
        save_file({name: np.ascontiguousarray(a) for name, a in state.items()}, part)
        os.replace(part, path)
    except OSError as error:
        raise ValueError(f"cannot save {path}: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


def load(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
    """The state in a file."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"cannot load {path}: there is no such file")
    try:
        return load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"cannot load {path}: it is not a whole safetensors file ({error})"
        ) from None

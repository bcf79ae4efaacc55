"""Saves and loads state dictionaries in open files and in memory, such as an io.BytesIO, by a
temporary file: the digest is known only at the end, and some streams cannot seek."""

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

from nnmpi.io.files.loading import load as load_path
from nnmpi.io.files.saving import save as save_path


def _name(file: IO[bytes]) -> str:
    """The name of a file for messages and warnings, without its folder."""
    name = getattr(file, "name", None)
    return Path(name).name if isinstance(name, str) else "stream"


def save(state: Any, file: IO[bytes], metadata: Mapping[str, str] | None) -> None:
    """Writes a state dictionary and its metadata to an open file, at the file's position."""
    with TemporaryDirectory() as folder:
        path = Path(folder, _name(file))
        save_path(state, path, metadata)
        file.write(path.read_bytes())


def load(file: IO[bytes], map_location: Any) -> tuple[Any, dict[str, str]]:
    """Returns (state dictionary, metadata) of an open file from its position on."""
    content = file.read()
    if not isinstance(content, bytes):
        raise TypeError(f'load: the file gives text: open it as open("{_name(file)}", "rb")')
    with TemporaryDirectory() as folder:
        path = Path(folder, _name(file))
        path.write_bytes(content)
        return load_path(path, map_location, with_metadata=True)

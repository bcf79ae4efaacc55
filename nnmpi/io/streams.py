"""State dictionaries in open files and in memory: `save` and `load` of a file, as io.BytesIO.

A state is written to a file of its own first, since its digest is known only at the end, and a
stream may be one that cannot seek.
"""

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
    """Writes a state to an open file, at its position."""
    with TemporaryDirectory() as folder:
        path = Path(folder, _name(file))
        save_path(state, path, metadata)
        file.write(path.read_bytes())


def load(file: IO[bytes]) -> tuple[Any, dict[str, str]]:
    """Reads a state and its metadata from an open file: all that is behind its position."""
    content = file.read()
    if not isinstance(content, bytes):
        raise TypeError(f'load: the file gives text: open it as open("{_name(file)}", "rb")')
    with TemporaryDirectory() as folder:
        path = Path(folder, _name(file))
        path.write_bytes(content)
        return load_path(path, with_metadata=True)

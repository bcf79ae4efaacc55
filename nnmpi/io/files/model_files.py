"""Opens a model on disk: a file, or a folder if an add-on reads folders."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from nnmpi.addons import Table
from nnmpi.io.files.atomic import check_target
from nnmpi.nn import Module
from nnmpi.nn.state import PLAIN, FileFormat

if TYPE_CHECKING:
    from nnmpi.options.config import Config

Build = Callable[[], Module]


class Prepared(NamedTuple):
    """A file that is about to get a model's tensors: path, names, layouts, metadata."""

    file: str
    form: FileFormat
    metadata: Mapping[str, str]


class ModelFile:
    """A model in a file: tensors under the names that they have in the model, and metadata. For a
    folder, an add-on's class with the same methods is used."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    @property
    def weights(self) -> str:
        """The file to which the tensors are written."""
        return self.path

    @property
    def source(self) -> Path:
        """The file from which the tensors are read, or the index of its shards."""
        return Path(self.path)

    def form(self) -> FileFormat:
        """Returns names and layouts of tensors in the file: here the model's."""
        return PLAIN

    def resolved(self, config: "Config", is_named: bool) -> tuple["Config", Build | None]:
        """Returns (config, None): `config` names the model, which a file does not.

        A class for folders, where config.json describes the model, returns the config with its
        name, and a function that builds it; it raises ValueError if the user has named another
        model (`is_named`).
        """
        return config, None

    def check(self) -> None:
        """Raises NotSavedError if no model can be written at the path."""
        check_target(self.path)

    def check_model(self, sizes: tuple[Any, ...] | None, model: str) -> None:
        """Raises NotSavedError if a model of these sizes cannot be written there."""

    def prepared(
        self, sizes: tuple[Any, ...] | None, about: Mapping[str, str]
    ) -> AbstractContextManager[Prepared]:
        """Returns a context in which a model's tensors are written."""
        return nullcontext(Prepared(self.path, PLAIN, about))


FOLDERS: Table[type[ModelFile]] = Table("model_files")
"""Under "folder": the class that reads and writes a model in a folder."""


def model_file(path: str | os.PathLike[str]) -> ModelFile:
    """Returns what reads and writes a model at a path; folders belong to an add-on."""
    kind = FOLDERS.row("folder") if is_folder(path) else None
    return (kind or ModelFile)(path)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Returns True if a path is an existing folder or ends in a slash."""
    return os.fspath(path).endswith(os.sep) or os.path.isdir(path)

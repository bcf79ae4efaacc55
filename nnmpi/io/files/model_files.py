"""Where a model is on disk: in a file of nnmpi, or in a folder if an add-on reads those."""

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi import addons
from nnmpi.io.files.atomic import check_target
from nnmpi.nn import Module
from nnmpi.nn.state import PLAIN, FileFormat
from nnmpi.options.config import Config

Build = Callable[[], Module]


class Prepared(NamedTuple):
    """Where the tensors of a model are written, in which form, and with which metadata."""

    file: str
    form: FileFormat
    metadata: Mapping[str, str]


class ModelFile:
    """A model in a file: tensors under the names that the model has, and metadata.

    The row `folder` of `model_files` has the same methods for a path that names a folder.
    """

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
        """The names and layouts of the tensors in what is there."""
        return PLAIN

    def resolved(self, config: Config, is_named: bool) -> tuple[Config, Build | None]:
        """The config with the name of the model that is there, and the function that makes it; None
        if only tensors are known. Raises ValueError if the config names another model."""
        return config, None

    def check(self) -> None:
        """Raises NotSavedError if no model can be written there; called before a run trains."""
        check_target(self.path)

    def check_model(self, sizes: tuple[Any, ...] | None, model: str) -> None:
        """Raises NotSavedError if a model with this name and sizes cannot be written there."""

    def prepared(
        self, sizes: tuple[Any, ...] | None, about: Mapping[str, str]
    ) -> AbstractContextManager[Prepared]:
        """A context in which the tensors of a model with these metadata are written."""
        return nullcontext(Prepared(self.path, PLAIN, about))


def model_file(path: str | os.PathLike[str]) -> ModelFile:
    """The file, or the folder, that a model at this path is or will be."""
    kind = addons.row("model_files", "folder") if is_folder(path) else None
    file: ModelFile = (kind or ModelFile)(path)
    return file


def is_folder(path: str | os.PathLike[str]) -> bool:
    """True if a path names a folder: it exists as one, or ends in a slash."""
    return os.fspath(path).endswith(os.sep) or os.path.isdir(path)

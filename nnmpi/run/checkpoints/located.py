"""Numbers in the files of a checkpoint: which file, type and byte."""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

from nnmpi.nn.tensor_files import TYPES
from nnmpi.parallel.model.snapshot import RangeOf

NAME = "manifest.json"
TYPE_NAMES = (*TYPES,)


class DamagedError(ValueError):
    """A checkpoint, or a part of one, is not what was written."""


class InFile(NamedTuple):
    """Numbers in a file: the name of their type, and the byte at which they begin."""

    dtype: Annotated[str, TYPE_NAMES]
    at: int


class ArrayInFile(NamedTuple):
    """An array in the file of the first rank, in C order."""

    dtype: Annotated[str, TYPE_NAMES]
    at: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class SavedFile:
    """A file of a rank: its size, the SHA-256 of each block of 1 MB, and what is in it."""

    name: str
    bytes: int
    sha256: tuple[str, ...]
    ranges: tuple[RangeOf[InFile], ...]

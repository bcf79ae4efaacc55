"""PyTorch's `utils`: `utils.data` with data sets and loaders, and `utils.checkpoint`."""

from typing import TYPE_CHECKING

from nnmpi.autograd import replacements
from nnmpi.utils import checkpoint as checkpoint
from nnmpi.utils import data as data

__path__.append(replacements.ABSENT)

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.utils", "utils")

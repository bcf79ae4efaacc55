"""PyTorch's `utils`: `utils.data` with data sets and loaders, and `utils.checkpoint`."""

from typing import TYPE_CHECKING

from nnmpi.addons.torchlike.utils import checkpoint as checkpoint
from nnmpi.addons.torchlike.utils import data as data
from nnmpi.autograd import replacements

__path__.append(replacements.ABSENT)

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.utils", "utils")

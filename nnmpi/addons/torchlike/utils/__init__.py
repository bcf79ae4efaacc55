"""PyTorch's `utils`: `utils.data` with data sets and loaders, and `utils.checkpoint`."""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.addons.torchlike.utils import checkpoint as checkpoint
from nnmpi.addons.torchlike.utils import data as data

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.utils", "utils")

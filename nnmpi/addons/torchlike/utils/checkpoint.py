"""PyTorch's `utils.checkpoint`: parts computed again in the backward pass."""

from typing import TYPE_CHECKING

from nnmpi.addons import finder
from nnmpi.nn.recompute import checkpoint as checkpoint

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = finder.refuser("nnmpi.utils.checkpoint", "utils.checkpoint")

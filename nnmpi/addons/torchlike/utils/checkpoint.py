"""PyTorch's `utils.checkpoint`: parts computed again in the backward pass."""

from typing import TYPE_CHECKING

from nnmpi.autograd import replacements
from nnmpi.nn.recompute import checkpoint as checkpoint

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.utils.checkpoint", "utils.checkpoint")

"""PyTorch's `utils.checkpoint`: parts of a model that are computed again in the backward pass, so
that their activations need not be kept."""

from typing import TYPE_CHECKING

from nnmpi.autograd import replacements
from nnmpi.nn.recompute import checkpoint as checkpoint

if not TYPE_CHECKING:  # type checkers still report names that do not exist
    __getattr__ = replacements.refuser("nnmpi.utils.checkpoint", "utils.checkpoint")

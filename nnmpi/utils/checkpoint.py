"""PyTorch's `utils.checkpoint`: parts of a model that are computed again in the backward pass, so
that their activations need not be kept."""

from nnmpi.nn.recompute import checkpoint as checkpoint

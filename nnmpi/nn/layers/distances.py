"""PyTorch's layers of two inputs: cosines of angles between vectors, and their distances."""

from typing import Any

from nnmpi.autograd import Tensor
from nnmpi.nn.element_losses import cosine_similarity, pairwise_distance
from nnmpi.nn.module import Module


class CosineSimilarity(Module):
    """The cosine of the angle between vectors along `dim`; norms are at least `eps`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8) -> None:
        self.dim, self.eps = dim, eps

    def forward(self, x1: Any, x2: Any) -> Tensor:
        return cosine_similarity(x1, x2, self.dim, self.eps)


class PairwiseDistance(Module):
    """The p-norm of x1 - x2 + eps along the last axis."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Any, x2: Any) -> Tensor:
        return pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)

"""PyTorch's layers of two inputs: cosines of angles between vectors, and their distances; losses of
two inputs, with labels 1 and -1."""

from typing import Any

from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensors, where
from nnmpi.nn.element_losses import cosine_similarity, pairwise_distance
from nnmpi.nn.losses import Loss
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


class CosineEmbeddingLoss(Loss):
    """The loss 1 - cos of pairs of vectors with the label 1, and max(cos - margin, 0) of those with
    -1."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, input1: Any, input2: Any, target: Any) -> Tensor:
        a, b, y = as_tensors(input1, input2, target)
        if a.shape != b.shape or a.ndim not in (1, 2) or y.shape != a.shape[:-1]:
            raise ValueError(
                f"CosineEmbeddingLoss: inputs of shapes {a.shape} and {b.shape} with labels of "
                f"{y.shape}; it takes (N, D) or (D,) twice, and a label for each vector"
            )
        squares = ((t * t).sum(-1) + 1e-12 for t in (a, b))
        cosines = (a * b).sum(-1) / (next(squares) * next(squares)).sqrt()
        apart = (cosines - self.margin).clamp(min=0.0)
        return self.reduced(where(y == 1, 1.0 - cosines, where(y == -1, apart, 0.0)))


class MarginRankingLoss(Loss):
    """The loss max(-y (x1 - x2) + margin, 0): x1 is to be larger with the label 1, smaller with
    -1."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, input1: Any, input2: Any, target: Any) -> Tensor:
        a, b, y = as_tensors(input1, input2, target)
        losses: Tensor = (self.margin - y.to(a.dtype) * (a - b)).clamp(min=0.0)
        return self.reduced(losses)

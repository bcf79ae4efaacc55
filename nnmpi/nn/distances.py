"""Lengths of vectors and distances between them, and the triplet loss."""

import math
from typing import Any

import numpy as np

from nnmpi.arrays.dtypes import types_of
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensors, maximum, minimum
from nnmpi.nn.losses import Loss


def _norms(x: Tensor, p: float, dim: int, least: float) -> Tensor:
    """The p-norms along an axis, which keeps length 1; below `least` they have no gradient."""
    if not p > 0:
        raise ValueError(f"p={p!r}: the order of a norm must be above 0, or math.inf")
    if math.isinf(p):
        return maximum(abs(x).max(dim, True), least)
    powers = (x * x if p == 2 else abs(x) ** p).sum(dim, True)
    norms: Tensor = maximum(powers, max(least**p, float(np.finfo(x.dtype).tiny))) ** (1 / p)
    return norms


def _widened(*values: Any) -> tuple[Any, list[Tensor]]:
    """The type of the first value, and all values in at least float32."""
    tensors = as_tensors(*values)
    return tensors[0].dtype, [t.astype(types_of(t.dtype).sums) for t in tensors]


def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """x / max(|x|, eps), with the p-norm |x| along `dim`."""
    dtype, (x,) = _widened(input)
    return (x / _norms(x, p, dim, eps)).astype(dtype)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """The sum of x1 x2 along `dim`, over max(|x1|, eps) max(|x2|, eps)."""
    dtype, (a, b) = _widened(x1, x2)
    cosines: Tensor = (a / _norms(a, 2, dim, eps) * (b / _norms(b, 2, dim, eps))).sum(dim)
    return cosines.astype(dtype)


def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis."""
    dtype, (a, b) = _widened(x1, x2)
    distances = _norms(a - b + eps, p, -1, 0.0).astype(dtype)
    return distances if keepdim else distances.squeeze(-1)


class TripletMarginLoss(Loss):
    """max(d(anchor, positive) - d(anchor, negative) + margin, 0), d the distance of vectors.

    With `swap` the negative's distance is the smaller one of those from anchor and positive. `p`
    and `eps` are those of `functional.pairwise_distance`.
    """

    def __init__(
        self,
        margin: float = 1.0,
        p: float = 2.0,
        eps: float = 1e-6,
        swap: bool = False,
        *,
        reduction: str = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.margin, self.p, self.eps, self.swap = margin, p, eps, swap

    def forward(self, anchor: Any, positive: Any, negative: Any) -> Tensor:
        near = pairwise_distance(anchor, positive, self.p, self.eps)
        far = pairwise_distance(anchor, negative, self.p, self.eps)
        if self.swap:
            far = minimum(far, pairwise_distance(positive, negative, self.p, self.eps))
        return self.reduced((near - far + self.margin).clamp(min=0.0))

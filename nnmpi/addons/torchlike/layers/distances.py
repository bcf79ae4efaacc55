"""Distances, cosines of angles, and losses of distances, as PyTorch's."""

import math
from functools import reduce
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.layer_functions import function_of
from nnmpi.arrays.dtypes import common_type, is_float, types_of
from nnmpi.autograd import Tensor
from nnmpi.autograd.functional import as_tensors, maximum, minimum, where, wide
from nnmpi.nn.losses import Loss
from nnmpi.nn.module import Module


def _norms(x: Tensor, p: float, dim: int, least: float) -> Tensor:
    """The p-norms of x along `dim`, kept; one below `least` becomes that, without gradient."""
    if not p > 0:
        raise ValueError(f"p={p!r}: the order of a norm must be above 0, or math.inf")
    if math.isinf(p):
        return maximum(abs(x).amax(dim, True), least)
    powers = (x * x if p == 2 else abs(x) ** p).sum(dim, True)
    norms: Tensor = maximum(powers, max(least**p, float(np.finfo(x.dtype).tiny))) ** (1 / p)
    return norms


def _widened(*values: Any) -> tuple[Any, list[Tensor]]:
    """Returns (common type, tensors in the type of its sums), such as float32 for float16."""
    tensors = as_tensors(*values)
    dtype = reduce(common_type, [t.dtype for t in tensors])
    if not is_float(dtype):
        raise TypeError(f"norms need floating-point tensors, not {dtype}: write x.float()")
    return dtype, [t.astype(types_of(dtype).sums) for t in tensors]


def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """Returns x / max(|x|, eps), where |x| is the p-norm along `dim`."""
    dtype, (x,) = _widened(input)
    return (x / _norms(x, p, dim, eps)).astype(dtype)


def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Returns the sum of x1 x2 along `dim`, divided by max(|x1|, eps) max(|x2|, eps)."""
    dtype, (a, b) = _widened(x1, x2)
    cosines: Tensor = (a / _norms(a, 2, dim, eps) * (b / _norms(b, 2, dim, eps))).sum(dim)
    return cosines.astype(dtype)


def pairwise_distance(
    x1: Any, x2: Any, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """The p-norm of x1 - x2 + eps along the last axis, kept with `keepdim`."""
    a, b = as_tensors(x1, x2)
    between = a - b
    dtype, (d,) = _widened(between if is_float(between.dtype) else between.float())
    distances = _norms(d + eps, p, -1, 0.0).astype(dtype)
    return distances if keepdim else distances.squeeze(-1)


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
    """1 - cos of pairs of vectors with the label 1, max(cos - margin, 0) with -1."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, input1: Any, input2: Any, target: Any) -> Tensor:
        a, b, y = map(wide, as_tensors(input1, input2, target))
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
    """max(-y (x1 - x2) + margin, 0): x1 is to be larger with the label 1, smaller with -1."""

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.margin = margin

    def forward(self, input1: Any, input2: Any, target: Any) -> Tensor:
        a, b, y = map(wide, as_tensors(input1, input2, target))
        losses: Tensor = (self.margin - y.to(a.dtype) * (a - b)).clamp(min=0.0)
        return self.reduced(losses)


class TripletMarginLoss(Loss):
    """The loss max(d(anchor, positive) - d(anchor, negative) + margin, 0), where d is the distance
    of `functional.pairwise_distance`. With `swap`, d(positive, negative) replaces d(anchor,
    negative) where it is smaller."""

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
        anchor, positive, negative = map(wide, as_tensors(anchor, positive, negative))
        near = pairwise_distance(anchor, positive, self.p, self.eps)
        far = pairwise_distance(anchor, negative, self.p, self.eps)
        if self.swap:
            far = minimum(far, pairwise_distance(positive, negative, self.p, self.eps))
        return self.reduced((near - far + self.margin).clamp(min=0.0))


triplet_margin_loss = function_of(TripletMarginLoss, "anchor", "positive", "negative")

"""Elementwise losses, whose prediction and target have the same shape; distances of vectors and
losses of distances."""

import math
from typing import Any

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import types_of
from nnmpi.autograd import Tensor, apply, array_on, as_tensor
from nnmpi.autograd.functional import as_tensors, maximum, minimum, where
from nnmpi.autograd.ops import losses as ops
from nnmpi.nn.losses import Loss, weights


class ElementLoss(Loss):
    """The base of losses that compare each element of the prediction with the same element of the
    target.

    weight: broadcast to the losses, each of which it multiplies
    """

    weight: np.ndarray | None = None

    def forward(self, prediction: Any, target: Any) -> Tensor:
        prediction = as_tensor(prediction)
        # in the prediction's type, so that the gradient is of that type too
        if not isinstance(target, Tensor):
            target = Tensor(array_on(backend.of(prediction.array), target, prediction.dtype))
        elif target.dtype != prediction.dtype:
            target = target.astype(prediction.dtype)
        if target.shape != prediction.shape:
            raise ValueError(
                f"{type(self).__name__}: prediction of shape {prediction.shape}, "
                f"target of {target.shape}: give both the same shape; y[:, None] adds an axis"
            )
        losses = self.losses(prediction, target)
        if self.weight is not None:
            losses = losses * _broadcast(self.weight, losses)
        return self.reduced(losses)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        """Returns the loss of each element."""
        raise NotImplementedError


class MSELoss(ElementLoss):
    """The squared error (prediction - target) ** 2."""

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        d: Tensor = prediction - target
        return d * d


class L1Loss(ElementLoss):
    """The absolute error |prediction - target|."""

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        return abs(prediction - target)


class SmoothL1Loss(ElementLoss):
    """The loss d**2 / (2 beta) where |d| < beta, and |d| - beta / 2 elsewhere, of d = prediction -
    target."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        if not 0 <= beta < math.inf:
            raise ValueError(f"SmoothL1Loss: beta={beta!r} must be a number of at least 0")
        self.beta = beta

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        d: Tensor = prediction - target
        return apply(ops.smooth_l1, d, beta=self.beta) if self.beta else abs(d)


class HuberLoss(SmoothL1Loss):
    """The loss d**2 / 2 where |d| < delta, and delta (|d| - delta / 2) elsewhere, of d = prediction
    - target."""

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0) -> None:
        if not 0 < delta < math.inf:
            raise ValueError(f"HuberLoss: delta={delta!r} must be a number above 0")
        super().__init__(reduction=reduction, beta=delta)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        return super().losses(prediction, target) * self.beta


class BCELoss(ElementLoss):
    """The binary cross-entropy -(y log(p) + (1 - y) log(1 - p)) of probabilities p, with logs of at
    least -100."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.weight = weights(type(self).__name__, "weight", weight)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        p = prediction.array  # checked on the host only: a device would have to be waited for
        if isinstance(p, np.ndarray) and p.size and (p.min() < 0 or p.max() > 1):
            raise ValueError(
                f"BCELoss: predictions from {p.min():g} to {p.max():g} are not probabilities, "
                "which are 0 to 1: put a Sigmoid before it, or use BCEWithLogitsLoss"
            )
        return apply(ops.bce, prediction, target)


class BCEWithLogitsLoss(ElementLoss):
    """The binary cross-entropy of sigmoid(prediction), computed without overflow.

    pos_weight: broadcast to the targets; it multiplies the term y log(p)
    """

    def __init__(
        self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
    ) -> None:
        super().__init__(reduction=reduction)
        self.weight = weights(type(self).__name__, "weight", weight)
        self.pos_weight = weights(type(self).__name__, "pos_weight", pos_weight)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        positive = 1.0 if self.pos_weight is None else _broadcast(self.pos_weight, prediction)
        return apply(ops.bce_with_logits, prediction, target, pos_weight=positive)


class KLDivLoss(ElementLoss):
    """The Kullback-Leibler divergence y (log(y) - x) of log-probabilities x and targets y.

    Targets are probabilities, or their logs if `log_target`. The reduction "batchmean" divides the
    sum by the number of samples; without axes there is one.
    """

    reductions = (*ElementLoss.reductions, "batchmean")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.is_by_sample, self.log_target = reduction == "batchmean", log_target

    def divisor(self, target: Any) -> float:
        """Returns the number of samples for "batchmean", otherwise the number of elements of the
        target."""
        return float(_samples(target)) if self.is_by_sample else super().divisor(target)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        y = target.exp() if self.log_target else target
        logs = target if self.log_target else where(y != 0, y, 1.0).log()
        losses: Tensor = y * (logs - prediction)
        return losses

    def reduced(self, losses: Tensor) -> Tensor:
        total = super().reduced(losses)
        return total / max(_samples(losses), 1) if self.is_by_sample else total


def _samples(x: Any) -> int:
    """Returns the length of the first axis; 1 without axes."""
    return len(x) if np.ndim(x) else 1


def _broadcast(weight: np.ndarray, like: Tensor) -> Array:
    """Returns the weights in the type and on the backend of `like`; raises ValueError unless they
    broadcast to its shape."""
    try:
        fits = np.broadcast_shapes(weight.shape, like.shape) == like.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"weights of shape {weight.shape} do not broadcast to a prediction of {like.shape}"
        )
    return array_on(backend.of(like.array), weight, like.dtype)


def _norms(x: Tensor, p: float, dim: int, least: float) -> Tensor:
    """Returns the p-norms along an axis, which is kept with length 1; norms below `least` are
    `least`, and have no gradient."""
    if not p > 0:
        raise ValueError(f"p={p!r}: the order of a norm must be above 0, or math.inf")
    if math.isinf(p):
        return maximum(abs(x).amax(dim, True), least)
    powers = (x * x if p == 2 else abs(x) ** p).sum(dim, True)
    norms: Tensor = maximum(powers, max(least**p, float(np.finfo(x.dtype).tiny))) ** (1 / p)
    return norms


def _widened(*values: Any) -> tuple[Any, list[Tensor]]:
    """Returns the type of the first value, and all values as tensors in the accumulation type,
    which is at least float32."""
    tensors = as_tensors(*values)
    return tensors[0].dtype, [t.astype(types_of(t.dtype).sums) for t in tensors]


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
    """Returns the p-norm of x1 - x2 + eps along the last axis."""
    dtype, (a, b) = _widened(x1, x2)
    distances = _norms(a - b + eps, p, -1, 0.0).astype(dtype)
    return distances if keepdim else distances.squeeze(-1)


class TripletMarginLoss(Loss):
    """The loss max(d(anchor, positive) - d(anchor, negative) + margin, 0), where d is the distance.

    With `swap`, d(positive, negative) replaces d(anchor, negative) where it is smaller. `p` and
    `eps` are those of `functional.pairwise_distance`.
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

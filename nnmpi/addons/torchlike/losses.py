"""PyTorch's elementwise losses besides MSELoss and L1Loss, as layers and as functions."""

import math
from typing import Any

import numpy as np

from nnmpi.addons.torchlike.layer_functions import function_of
from nnmpi.addons.torchlike.ops import element_losses as ops
from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.autograd import Tensor, apply, array_on
from nnmpi.autograd.functional import where
from nnmpi.nn.losses import ElementLoss, weights


class SmoothL1Loss(ElementLoss):
    """d**2 / (2 beta) where |d| < beta, else |d| - beta / 2, of d = prediction - target."""

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction=reduction)
        if not 0 <= beta < math.inf:
            raise ValueError(f"SmoothL1Loss: beta={beta!r} must be a number of at least 0")
        self.beta = beta

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        d: Tensor = prediction - target
        return apply(ops.smooth_l1, d, beta=self.beta) if self.beta else abs(d)


class HuberLoss(SmoothL1Loss):
    """d**2 / 2 where |d| < delta, else delta (|d| - delta / 2), of d = prediction - target."""

    promotes = False

    def __init__(self, *, reduction: str = "mean", delta: float = 1.0) -> None:
        if not 0 < delta < math.inf:
            raise ValueError(f"HuberLoss: delta={delta!r} must be a number above 0")
        super().__init__(reduction=reduction, beta=delta)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        return super().losses(prediction, target) * self.beta


class WeightedLoss(ElementLoss):
    """The base of elementwise losses times a weight, broadcast to their shape."""

    def __init__(self, weight: Any = None, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        self.weight = weights(type(self).__name__, "weight", weight)

    def weighted(self, losses: Tensor) -> Tensor:
        """Returns the losses times the weight."""
        return losses if self.weight is None else losses * _broadcast(self.weight, losses)


class BCELoss(WeightedLoss):
    """-(y log(p) + (1 - y) log(1 - p)) of probabilities p, with logs of at least -100."""

    promotes = False

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        p = prediction.array  # checked on the host only: a device would have to be waited for
        if isinstance(p, np.ndarray) and p.size and (p.min() < 0 or p.max() > 1):
            raise ValueError(
                f"BCELoss: predictions from {p.min():g} to {p.max():g} are not probabilities, "
                "which are 0 to 1: put a Sigmoid before it, or use BCEWithLogitsLoss"
            )
        return self.weighted(apply(ops.bce, prediction, target))


class BCEWithLogitsLoss(WeightedLoss):
    """The binary cross-entropy of sigmoid(prediction), computed without overflow; `pos_weight`,
    broadcast to the targets, multiplies the term y log(p)."""

    def __init__(
        self, weight: Any = None, *, reduction: str = "mean", pos_weight: Any = None
    ) -> None:
        super().__init__(weight, reduction=reduction)
        self.pos_weight = weights(type(self).__name__, "pos_weight", pos_weight)

    def losses(self, prediction: Tensor, target: Tensor) -> Tensor:
        positive = 1.0 if self.pos_weight is None else _broadcast(self.pos_weight, prediction)
        losses = apply(ops.bce_with_logits, prediction, target, pos_weight=positive)
        return self.weighted(losses)


class KLDivLoss(ElementLoss):
    """The Kullback-Leibler divergence y (log(y) - x) of log-probabilities x and targets y, which
    are probabilities, or their logs if `log_target`. The reduction "batchmean" divides the sum by
    the number of samples, the length of the first axis (1 if there are no axes)."""

    reductions = (*ElementLoss.reductions, "batchmean")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False) -> None:
        super().__init__(reduction=reduction)
        self.is_by_sample, self.log_target = reduction == "batchmean", log_target

    def divisor(self, target: Any) -> float:
        """The number of samples for "batchmean", otherwise of the target's elements."""
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
    """Returns the weights like `like`; raises ValueError unless they broadcast to it."""
    try:
        fits = np.broadcast_shapes(weight.shape, like.shape) == like.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"weights of shape {weight.shape} do not broadcast to a prediction of {like.shape}"
        )
    return array_on(backend.of(like.array), weight, like.dtype)


smooth_l1_loss = function_of(SmoothL1Loss, "input", "target")
huber_loss = function_of(HuberLoss, "input", "target")
kl_div = function_of(KLDivLoss, "input", "target")
binary_cross_entropy = function_of(BCELoss, "input", "target")
binary_cross_entropy_with_logits = function_of(BCEWithLogitsLoss, "input", "target")

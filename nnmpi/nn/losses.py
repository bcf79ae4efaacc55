"""Losses: modules from predictions and targets to a scalar."""

from typing import Any

import numpy as np

from nnmpi import backend
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.arguments import array_on
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import softmax
from nnmpi.nn.module import Module


class _Loss(Module):
    """The base of the losses: how the losses of the samples are reduced to one."""

    def __init__(self, *, reduction: str = "mean") -> None:
        if reduction not in softmax.REDUCTIONS:
            raise ValueError(f"reduction {reduction!r} is none of {', '.join(softmax.REDUCTIONS)}")
        self.reduction = reduction

    def __call__(self, *args: Any) -> Tensor:
        """Unlike a module's, it is not counted as a forward pass: nothing in a loss is random."""
        loss: Tensor = self.forward(*args)
        return loss


class CrossEntropyLoss(_Loss):
    """-log(softmax(logits))[label]: logits (N, C), integer labels (N,)."""

    def forward(self, logits: Tensor, labels: Any) -> Tensor:
        logits = as_tensor(logits)
        labels = checked_labels("CrossEntropyLoss", logits.shape, labels)
        return apply(softmax.cross_entropy, logits, labels, reduction=self.reduction)

    def evaluate(self, logits: Tensor, labels: Any) -> tuple[float, int]:
        """The loss, and how many labels have the largest logit (the first of equal ones)."""
        logits = as_tensor(logits)
        labels = checked_labels("CrossEntropyLoss", logits.shape, labels)
        correct = logits.numpy().argmax(1) == backend.to_host(labels)
        return self(logits, labels).item(), int(correct.sum())


class NLLLoss(_Loss):
    """-logp[label]: log-probabilities (N, C), integer labels (N,)."""

    def forward(self, logp: Tensor, labels: Any) -> Tensor:
        logp = as_tensor(logp)
        labels = checked_labels("NLLLoss", logp.shape, labels)
        return apply(softmax.nll, logp, labels, reduction=self.reduction)


class MSELoss(_Loss):
    """(prediction - target) ** 2."""

    def forward(self, prediction: Tensor, target: Any) -> Tensor:
        prediction = as_tensor(prediction)
        target = _like(prediction, target)
        if target.shape != prediction.shape:
            raise ValueError(
                f"MSELoss: prediction of shape {prediction.shape}, target of {target.shape}"
            )
        d: Tensor = prediction - target
        squares: Tensor = d * d
        if self.reduction == "none":
            return squares
        # the mean of nothing is 0, as in the other losses
        return squares.mean() if self.reduction == "mean" and squares.size else squares.sum()


def _like(prediction: Tensor, target: Any) -> Tensor:
    """The target in the prediction's type, so that the gradient is of that type too."""
    if not isinstance(target, Tensor):
        return Tensor(array_on(backend.of(prediction.data), target, prediction.dtype))
    return target if target.dtype == prediction.dtype else target.astype(prediction.dtype)


def checked_labels(name: str, shape: tuple[int, ...], labels: Any) -> Any:
    """The labels of scores of this shape as an array; raises ValueError unless they fit.

    Their values are checked only on the host, without a wait.
    """
    if isinstance(labels, Tensor):
        labels = labels.data
    elif not backend.is_array(labels):
        labels = np.asarray(labels)
    if len(shape) != 2 or labels.shape != shape[:1] or labels.dtype.kind not in "iu":
        raise ValueError(
            f"{name}: scores of shape {shape} with {labels.dtype} labels of shape "
            f"{tuple(labels.shape)}; it takes (N, C) and N integers"
        )
    # as unsigned a negative label is huge, so one comparison finds both kinds of mistake
    on_host = isinstance(labels, np.ndarray) and labels.size
    if on_host and labels.astype(np.uint64).max() >= shape[1]:
        raise ValueError(
            f"{name}: labels from {labels.min()} to {labels.max()} for {shape[1]} "
            f"classes: they must be 0 to {shape[1] - 1}"
        )
    return labels

"""Losses: modules from predictions and targets to a scalar.

`divisor(target)` is the divisor of the mean. If samples are on several ranks, each rank sums the
losses of its own samples, and divides by the divisor of all samples.
"""

from functools import partial
from typing import Any, NoReturn

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import common_type, is_float, types_of
from nnmpi.arrays.kernels.epilogue import copied
from nnmpi.arrays.kernels.precision import sortable
from nnmpi.arrays.meta import copy_of, is_meta
from nnmpi.arrays.meta.log import UnlikeError, call_log, log_check
from nnmpi.autograd import Tensor, apply, array_of, array_on, as_tensor, on_host
from nnmpi.autograd.functional import wide
from nnmpi.autograd.ops import losses as ops
from nnmpi.autograd.ops import softmax
from nnmpi.autograd.recording import op_types
from nnmpi.nn import hooks
from nnmpi.nn.module import Module
from nnmpi.nn.passes import current_pass


class Loss(Module):
    """The base of losses: one for each sample or element, reduced by `reduction`."""

    register_forward_hook = hooks.refused_hook("Loss.register_forward_hook")
    register_forward_pre_hook = hooks.refused_hook("Loss.register_forward_pre_hook")

    reductions: tuple[str, ...] = softmax.REDUCTIONS

    def __init__(self, *, reduction: str = "mean") -> None:
        if reduction not in self.reductions:
            raise ValueError(f"reduction {reduction!r} must be one of {', '.join(self.reductions)}")
        self.reduction = reduction

    def __call__(self, *args: Any, **named: Any) -> Tensor:
        """Computes the loss, which is no new forward pass: no loss is random."""
        current = current_pass.get()
        around = None if current is None else current.around
        forward = partial(around, self, self.forward) if around else self.forward
        loss: Tensor = forward(*args, **named)
        return loss

    def divisor(self, target: Any) -> float:
        """Returns the divisor of the mean: the number of elements of the target."""
        return float(as_tensor(target).size)

    def reduced(self, losses: Tensor) -> Tensor:
        """Returns the losses reduced as `reduction` says; the mean of no elements is 0."""
        if self.reduction == "none":
            return losses
        total: Tensor = losses.mean() if self.reduction == "mean" and losses.size else losses.sum()
        return total


def weights(name: str, label: str, weight: Any) -> np.ndarray | None:
    """Returns the option `weight` of the loss `name` as a float64 array on the host, or None;
    raises ValueError, with its `label`, unless it has only finite numbers."""
    if weight is None:
        return None
    if isinstance(weight, str):
        raise ValueError(f"{name}: {label} {weight!r}: write {name}(reduction={weight!r})")
    values = on_host(weight)
    is_number = values.dtype.kind in "biu" or is_float(values.dtype)
    if not is_number or not np.isfinite(values).all():
        raise ValueError(f"{name}: {label} {weight!r:.60} must hold finite numbers only")
    return values.astype("float64")


# ---- losses of classes: scores (N, C, ...), and integer labels (N, ...)


class ClassLoss(Loss):
    """The base of losses of scores (N, C, ...) and labels (N, ...); those equal to `ignore_index`
    do not count.

    weight: (C,), the weight of the labels of each class; the mean divides by the sum of the weights
    """

    def __init__(
        self, weight: Any = None, *, ignore_index: int = ops.IGNORED, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction=reduction)
        name = type(self).__name__
        self.weight = weights(name, "weight", weight)
        if self.weight is not None and self.weight.ndim != 1:
            raise ValueError(
                f"{name}: weight of shape {self.weight.shape}: give one weight per class, (C,); "
                f"predictions go into the call of the loss, {name}()(scores, labels)"
            )
        self.ignore_index = ignore_index

    def divisor(self, target: Any) -> float:
        """Returns the divisor of the mean: the weights of labels that are not ignored."""
        labels = on_host(target)
        valid = labels != self.ignore_index
        if self.weight is None:
            return float(np.count_nonzero(valid))
        return float(self.weight[labels[valid]].sum())

    def evaluate(self, scores: Any, labels: Any) -> tuple[float, int, int]:
        """Returns (loss, correct, labels): the loss, the number of labels at which the score is
        largest (the first one, of equal scores), and the number of labels; ignored ones do not
        count. A device sends only these three numbers to the host."""
        scores = as_tensor(scores)
        labels, may_ignore = self.checked(scores.shape, labels)
        on, loss = backend.of(scores.array), self.loss_of(scores, labels, may_ignore)
        device_labels = on.asarray(labels)
        valid = device_labels != self.ignore_index
        correct = (on.xp.argmax(sortable(scores.array), axis=1) == device_labels) & valid
        row = [
            on.xp.asarray(n, "float64").reshape(1) for n in (loss.array, correct.sum(), valid.sum())
        ]
        total, hits, count = backend.to_host(on.xp.concatenate(row)).tolist()
        return total, int(hits), int(count)

    def forward(self, scores: Any, labels: Any) -> Tensor:
        scores = wide(scores)
        return self.loss_of(scores, *self.checked(scores.shape, labels))

    def loss_of(self, scores: Tensor, labels: Array, may_ignore: bool) -> Tensor:
        """Returns the loss for labels from `checked`; `may_ignore` is False if none is ignored."""
        raise NotImplementedError

    def checked(self, shape: tuple[int, ...], labels: Any) -> tuple[Array, bool]:
        """Returns (labels as an array, may_ignore) for scores of this shape; may_ignore is False if
        it is certain that no label equals `ignore_index`.

        Raises ValueError unless the labels fit the scores. Values are checked only on the host: a
        check on a device would have to wait for it.
        """
        if not isinstance(labels, np.ndarray):
            labels = array_of(labels)
        fits = len(shape) > 1 and labels.shape == (shape[0], *shape[2:])
        if not fits or labels.dtype.kind not in "iu":
            self._refuse_labels(shape, labels)
        classes = shape[1]
        if self.weight is not None and len(self.weight) != classes:
            raise ValueError(
                f"{type(self).__name__}: weights of {len(self.weight)} classes, but scores of "
                f"{classes}: give a weight for each class"
            )
        if type(labels) is np.ndarray:
            return labels, self._may_ignore(labels, classes)
        # where calls are logged, checks are made later, and the usual case is assumed
        if is_meta(labels) or call_log.get() is not None:
            may_ignore = 0 <= self.ignore_index < classes
            log_check(self._check_ignored, labels, classes, may_ignore)
            return labels, may_ignore
        return labels, True

    def _refuse_labels(self, shape: tuple[int, ...], labels: Array) -> NoReturn:
        """Raises ValueError for labels that do not fit scores of this shape."""
        name = type(self).__name__
        if labels.dtype.kind == "f" and labels.shape == shape:
            raise ValueError(
                f"{name}: it takes labels, and {labels.dtype} targets in the shape of the scores, "
                f"{shape}, are probabilities: write -(y * x).sum(1).mean()"
            )
        raise ValueError(
            f"{name}: scores of shape {shape} with {labels.dtype} labels of shape "
            f"{tuple(labels.shape)}; it takes (N, C) and N integers, "
            "or (N, C, ...) and integers (N, ...)"
        )

    def _check_ignored(self, labels: np.ndarray, classes: int, may_ignore: bool) -> None:
        """Raises UnlikeError if a recorded pass cannot be replayed with `labels`: some are ignored
        and the recorded kernels cannot ignore any (`may_ignore`), or none is and they can."""
        if self._may_ignore(labels, classes) != may_ignore:
            raise UnlikeError("some labels are ignored")

    def _may_ignore(self, labels: np.ndarray, classes: int) -> bool:
        """Returns True if a label equals `ignore_index`, or if that is itself a class, when labels
        are not searched for it; if False, the loss may use the faster kernels that ignore nothing.

        Raises ValueError for a label that is neither `ignore_index` nor from 0 to classes - 1.
        """
        # as an unsigned integer a negative label is huge, so one comparison finds both mistakes
        unsigned = labels.astype(np.uint64)
        if not labels.size or unsigned.item(unsigned.argmax()) < classes:  # faster than a maximum
            return 0 <= self.ignore_index < classes
        valid = labels[labels != self.ignore_index]
        if valid.astype(np.uint64).max(initial=0) >= classes:
            raise ValueError(
                f"{type(self).__name__}: labels from {valid.min()} to {valid.max()} for {classes} "
                f"classes: they must be 0 to {classes - 1}, or {self.ignore_index}, which is "
                "ignored"
            )
        return True

    def weight_like(self, scores: Tensor) -> Array | None:
        """Returns the weights in the type of the scores, on their backend."""
        if self.weight is None:
            return None
        weight = copied(self.weight, scores.dtype, scores.array)
        return copy_of(weight) if is_meta(scores.array) and not is_meta(weight) else weight

    def options(self, scores: Tensor) -> dict[str, Any]:
        """Returns the keyword arguments of this loss's op for these scores."""
        options = {"ignore_index": self.ignore_index, "reduction": self.reduction}
        return {"weight": self.weight_like(scores), **options}


class CrossEntropyLoss(ClassLoss):
    """Cross-entropy -log(softmax(logits))[label] of logits (N, C, ...) and labels (N, ...).

    In place of labels it takes probabilities in the shape of the logits, of which none is ignored.

    label_smoothing: the share of each label that is spread evenly over all classes
    """

    def __init__(
        self,
        weight: Any = None,
        *,
        ignore_index: int = ops.IGNORED,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, ignore_index=ignore_index, reduction=reduction)
        if not 0 <= label_smoothing <= 1:
            raise ValueError(f"label_smoothing={label_smoothing!r} must be from 0 to 1")
        self.label_smoothing = label_smoothing

    def forward(self, scores: Any, labels: Any) -> Tensor:
        scores, array = wide(scores), array_of(labels)
        if are_probabilities(scores, array):
            is_array = not isinstance(labels, Tensor)
            target = as_tensor(labels).astype(scores.dtype) if is_array else labels
            return self.loss_of_probabilities(scores, target)
        return self.loss_of(scores, *self.checked(scores.shape, array))

    def divisor(self, target: Any) -> float:
        """Returns the divisor of the mean: weights of labels, or the number of positions."""
        if is_float(array_of(target).dtype):
            return float(as_tensor(target).size / as_tensor(target).shape[1])
        return super().divisor(target)

    def loss_of_probabilities(self, scores: Tensor, target: Tensor) -> Tensor:
        """Returns -sum(target * log(softmax(scores))) of each position, reduced."""
        classes, axes = scores.shape[1], scores.ndim - 2
        if self.label_smoothing:
            target = target * (1 - self.label_smoothing) + self.label_smoothing / classes
        if (weight := self.weight_like(scores)) is not None:
            target = target * weight.reshape(-1, *(1,) * axes)
        return self.reduced(-(target * scores.log_softmax(1)).sum(1))

    def loss_of(self, scores: Tensor, labels: Array, may_ignore: bool) -> Tensor:
        if self._is_plain(may_ignore):
            return apply(softmax.cross_entropy, scores, labels, reduction=self.reduction)
        options = self.options(scores) | {"smoothing": self.label_smoothing}
        return apply(ops.weighted_cross_entropy, scores, labels, **options)

    def wide_loss(self, scores: Tensor, labels: Any) -> Tensor:
        """Returns the loss in float32 for 16-bit scores; on a device by one kernel."""
        if are_probabilities(scores, labels):
            return self(scores.astype(types_of(scores.dtype).sums), labels)
        labels, may_ignore = self.checked(scores.shape, labels)
        if backend.of(scores.array).is_host or not self._is_plain(may_ignore):
            return self.loss_of(scores.astype(types_of(scores.dtype).sums), labels, may_ignore)
        return apply(softmax.cross_entropy, scores, labels, reduction=self.reduction, widens=True)

    def _is_plain(self, may_ignore: bool) -> bool:
        return not may_ignore and self.weight is None and not self.label_smoothing


def are_probabilities(scores: Tensor, target: Any) -> bool:
    """True if the target has probabilities, one for each score, and not labels."""
    array = target if type(target) is np.ndarray else array_of(target)
    return is_float(array.dtype) and scores.ndim > 1 and array.shape == scores.shape


class NLLLoss(ClassLoss):
    """-logp[label] of log-probabilities (N, C, ...) and integer labels (N, ...)."""

    def loss_of(self, scores: Tensor, labels: Array, may_ignore: bool) -> Tensor:
        return apply(ops.nll, scores, labels, **self.options(scores))


# ---- losses of elements: predictions and targets of the same shape


class ElementLoss(Loss):
    """The base of losses of an element of the prediction and of the target."""

    promotes = True
    """False if prediction and target, as floats, must have one type, as in PyTorch."""

    def forward(self, prediction: Any, target: Any) -> Tensor:
        prediction = wide(prediction)
        if not isinstance(target, Tensor):
            # an array is taken in the prediction's type, a tensor promotes it, as in PyTorch
            dtype = prediction.dtype if is_float(prediction.dtype) else None
            target = Tensor(array_on(backend.of(prediction.array), target, dtype))
        if target.dtype != prediction.dtype:
            self.check_types(prediction, target)
            dtype = common_type(prediction.dtype, target.dtype)
            prediction, target = prediction.astype(dtype), target.astype(dtype)
        if target.shape != prediction.shape:
            raise ValueError(
                f"{type(self).__name__}: prediction of shape {prediction.shape}, "
                f"target of {target.shape}: give both the same shape; y[:, None] adds an axis"
            )
        return self.reduced(self.losses(prediction, target))

    def check_types(self, prediction: Tensor, target: Tensor) -> None:
        """Raises TypeError for two float types that PyTorch refuses; autocast converts them."""
        if self.promotes or not is_float(target.dtype) or op_types.get() is not None:
            return
        raise TypeError(
            f"{type(self).__name__}: prediction of {prediction.dtype}, target of {target.dtype}: "
            "give both one type, as in target.to(prediction.dtype)"
        )

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

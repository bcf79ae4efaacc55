"""Cross-entropy of logits whose classes are divided among ranks; no rank sees all logits.

Each rank computes four values for each sample from its own classes. After an all-gather, each rank
computes the whole loss from them in the same order, so all get equal bits.

    maximum    sum of exp(z - maximum)    logit of the label, or 0    class of the maximum
    with label_smoothing, a fifth: the sum of the logits times their shares of the smoothed label
"""

from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import Result, column_sum
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.functional import wide
from nnmpi.autograd.ops.losses import Labels, Smoothing, gradient
from nnmpi.autograd.ops.softmax import like_rows, rows_of
from nnmpi.comm import Comm
from nnmpi.nn.losses import CrossEntropyLoss
from nnmpi.parallel.tensor.ops import Bounds, all_gather, span_of
from nnmpi.parallel.wire import wire_for


class ShardedCrossEntropyLoss(CrossEntropyLoss):
    """CrossEntropyLoss of logits whose classes are divided among ranks: (N, this rank's classes,
    ...); labels are integers (N, ...).

    Labels are the same on all ranks, and so are the loss and the number of correct predictions.
    `weight` has an entry for each class of all ranks, and `options` are those of CrossEntropyLoss.
    """

    def __init__(
        self, comm: Comm, bounds: Bounds | None, weight: Any = None, **options: Any
    ) -> None:
        super().__init__(weight, **options)
        if bounds is None or len(bounds) != comm.size + 1:
            raise ValueError(
                f"ShardedCrossEntropyLoss: bounds {bounds} on {comm.size} ranks: they must be "
                f"{comm.size + 1} numbers; if the output of `parallelize` is None, logits are "
                "whole: use CrossEntropyLoss"
            )
        self.comm, self.bounds = comm, tuple(bounds)

    def forward(self, scores: Any, labels: Any) -> Tensor:
        scores = wide(scores)
        softmax = self._softmax(scores, labels)
        return apply(sharded_cross_entropy, scores, softmax=softmax, reduction=self.reduction)

    def evaluate(self, scores: Any, labels: Any) -> tuple[float, int, int]:
        softmax = self._softmax(as_tensor(scores), labels)
        total, _ = softmax.labels.reduced(softmax.losses(), self.reduction)
        kept = softmax.labels.kept
        # argmax takes the first of equal logits, on the lowest rank, as on one rank
        rank = softmax.table[:, 0].argmax(axis=0)
        predicted = softmax.table[rank, 3, xp_of(rank).arange(len(rank))].astype("int64")
        correct = (predicted == softmax.labels.classes) & kept
        return float(total), int(correct.sum()), int(kept.sum())

    def whole(self, scores: Tensor) -> np.ndarray:
        """Gathers the logits of all classes on every rank, in host memory. Every rank calls it."""
        start, stop = span_of(self.bounds, self.comm)
        bounds = tuple(b * (scores.shape[1] // (stop - start)) for b in self.bounds)
        return backend.to_host(all_gather(scores.array, self.comm, bounds, 1))

    def _softmax(self, logits: Tensor, labels: Any) -> "_Softmax":
        """Returns this rank's part of the softmax; every rank calls it."""
        start, stop = span_of(self.bounds, self.comm)
        if logits.ndim < 2 or logits.shape[1] % (stop - start):
            raise ValueError(
                f"ShardedCrossEntropyLoss: logits of shape {logits.shape}; this rank takes (N, "
                f"{stop - start}, ...), classes {start} to {stop - 1} of {self.bounds[-1]}"
            )
        repeat = logits.shape[1] // (stop - start)  # of a channel, where Flatten comes last
        shape = (logits.shape[0], self.bounds[-1] * repeat, *logits.shape[2:])
        held = range(start * repeat, stop * repeat)
        labels, _ = self.checked(shape, labels)
        z, weight = rows_of(logits.array), self.weight_like(logits)
        labels = backend.of(z).asarray(labels).reshape(-1)
        checked = Labels.of(labels, weight, self.ignore_index, z.dtype)
        smoothing = None
        if self.label_smoothing:
            weights = xp_of(z).ones(shape[1], z.dtype) if weight is None else weight
            smoothing = Smoothing.of(self.label_smoothing, weights, slice(held.start, held.stop))
        return _Softmax.of(z, checked, smoothing, held, self.comm)


def sharded_cross_entropy(z: Array, *, softmax: "_Softmax", reduction: str = "mean") -> Result:
    """An op: the cross-entropy of logits z of this rank's classes, (N, classes, ...). It sends no
    message: ranks have exchanged the maxima and sums in `softmax` before."""
    shape = z.shape
    y, scale = softmax.labels.reduced(softmax.losses(), reduction)
    if y.ndim:
        y = y.reshape(len(z), *z.shape[2:])

    def vjp(g: Array, out: Array | None) -> Array:
        return like_rows(softmax.gradient((g.reshape(-1) if g.ndim else g) * scale).T, shape)

    return Result(y, (vjp,))


class _Softmax(NamedTuple):
    """The softmax of n samples over classes that are divided among ranks.

    exponentials   (classes of this rank, N): exp(z - maximum over this rank's classes)
    chosen         for each sample, the flat index of its label in `exponentials`, if `held`
    held           for each sample, 1 if its label is one of this rank's classes, else 0
    rank           this rank's row of the table
    table          (ranks, 4 or 5, N): of each rank the maximum, the sum of exponentials, the logit
                   of the label, the best class, and with smoothing the weighted sum of logits
    """

    labels: Labels
    smoothing: Smoothing | None
    exponentials: Array
    chosen: Array
    held: Array
    rank: int
    table: Array

    @classmethod
    def of(
        cls, z: Array, labels: Labels, smoothing: Smoothing | None, classes: range, comm: Comm
    ) -> "_Softmax":
        """Computes the softmax of z, the logits of this rank's `classes`, and exchanges maxima and
        sums; every rank calls it. It computes on the transpose, with an axis of classes first."""
        xp, n = xp_of(z), len(labels.classes)
        held = (labels.classes >= classes.start) & (labels.classes < classes.stop)
        rows = (labels.classes - classes.start) * held
        chosen, s = rows * n + xp.arange(n), z.T.copy()
        numbers = 4 if smoothing is None else 5
        table = xp.zeros((comm.size, numbers, n), xp.promote_types(z.dtype, np.float32))
        mine = table[comm.rank]
        mine[0] = s.max(axis=0)
        mine[2] = xp.where(held, s.reshape(-1)[chosen], z.dtype.type(0))
        mine[3] = s.argmax(axis=0) + classes.start
        if smoothing is not None:
            mine[4] = xp.dot(smoothing.spread, s)
        top = mine[0].astype(z.dtype)
        s -= xp.where(top == -np.inf, z.dtype.type(0), top)  # -inf - -inf would be nan
        e = xp.exp(s, out=s)
        mine[1] = column_sum(e)
        wire_for(comm, table).all_gather(table)
        return cls(labels, smoothing, e, chosen, held.astype(z.dtype), comm.rank, table)

    def _sum(self) -> tuple[Array, Array]:
        """Returns each sample's maximum of logits, and the sum of exp(z - maximum)."""
        xp, maximum = xp_of(self.table), self.table[:, 0]
        top = maximum.max(axis=0)
        return top, (self.table[:, 1] * xp.exp(maximum - top)).sum(axis=0)

    def losses(self) -> Array:
        """Returns the loss of each sample; 0 where its label is ignored."""
        xp, (top, total), labels = xp_of(self.table), self._sum(), self.labels
        log_total, chosen = xp.log(total), self.table[:, 2].sum(axis=0) - top
        if self.smoothing is None:
            losses = labels.counts * (log_total - chosen)
        else:
            spread = self.table[:, 4].sum(axis=0) - self.smoothing.total * top
            losses = self.smoothing.losses(labels, log_total, chosen, spread)
        losses = xp.where(labels.kept, losses, xp.zeros_like(losses))
        return losses.astype(self.exponentials.dtype)

    def gradient(self, g: Array) -> Array:
        """Returns the gradient of this rank's logits, (classes, N), given g, that of the losses."""
        xp, (top, total) = xp_of(self.table), self._sum()
        factor = xp.exp(self.table[self.rank, 0] - top) / total
        p: Array = self.exponentials * factor.astype(self.exponentials.dtype)
        return gradient(p, self.chosen, self.held, self.labels, self.smoothing, g)

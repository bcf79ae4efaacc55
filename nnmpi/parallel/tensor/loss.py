"""Cross-entropy of logits whose classes are divided among ranks; no rank sees all logits.

Each rank finds, for each sample, four numbers of its own classes. One all-gather brings them to
all ranks, and every rank computes the whole loss from them, in one order: all have its bits.

    maximum    sum of exp(z - maximum)    logit of the label, or 0    class of the maximum
"""

from typing import Any, NamedTuple

import numpy as np

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import softmax
from nnmpi.backend import Array, xp_of
from nnmpi.comm import Comm
from nnmpi.kernels.result import Result
from nnmpi.kernels.sums import column_sum
from nnmpi.nn.losses import CrossEntropyLoss, checked_labels
from nnmpi.parallel.tensor.parts import own
from nnmpi.parallel.tensor.sums import Bounds


class ShardedCrossEntropyLoss(CrossEntropyLoss):
    """-log(softmax(logits))[label]: logits (N, this rank's classes), integer labels (N,).

    Labels are the same on all ranks, and so are the loss and the number of correct predictions.
    """

    def __init__(self, comm: Comm, bounds: Bounds | None, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)
        if bounds is None or len(bounds) != comm.size + 1:
            raise ValueError(
                f"ShardedCrossEntropyLoss: bounds {bounds} on {comm.size} ranks: they must be "
                f"{comm.size + 1} numbers; if the output of `parallelize` is None, logits are "
                "whole, and CrossEntropyLoss takes them"
            )
        self.comm, self.bounds = comm, tuple(bounds)

    def forward(self, logits: Tensor, labels: Any) -> Tensor:
        logits = as_tensor(logits)
        labels, classes = self._checked(logits, labels)
        return apply(
            sharded_cross_entropy,
            logits,
            labels,
            comm=self.comm,
            classes=classes,
            reduction=self.reduction,
        )

    def evaluate(self, logits: Tensor, labels: Any) -> tuple[float, int]:
        labels, classes = self._checked(logits, labels)
        found = _Softmax.of(logits.data, labels, classes, self.comm)
        losses = found.losses()
        total = losses.sum() / (max(len(losses), 1) if self.reduction == "mean" else 1)
        return float(total), int((found.predicted() == labels).sum())

    def _checked(self, logits: Tensor, labels: Any) -> tuple[Array, range]:
        """The labels, and which classes the columns of the logits are."""
        start, stop = own(self.bounds, self.comm)
        if logits.ndim != 2 or logits.shape[1] % (stop - start):
            raise ValueError(
                f"ShardedCrossEntropyLoss: logits of shape {logits.shape}; it takes (N, "
                f"{stop - start}) here, classes {start} to {stop - 1} of {self.bounds[-1]}"
            )
        repeat = logits.shape[1] // (stop - start)  # of a channel, where Flatten comes last
        shape = (logits.shape[0], self.bounds[-1] * repeat)
        labels = checked_labels("ShardedCrossEntropyLoss", shape, labels)
        return labels, range(start * repeat, stop * repeat)


def sharded_cross_entropy(
    z: Array, labels: Array, *, comm: Comm, classes: range, reduction: str = "mean"
) -> Result:
    """-log(softmax(z))[label] of which this rank has the columns `classes`; backward is local."""
    found = _Softmax.of(z, labels, classes, comm)
    y, scale = softmax.reduced(found.losses(), reduction)

    def vjp(g: Array, out: Array | None) -> Array:
        p = found.probabilities()
        p.reshape(-1)[found.chosen] -= 1
        p *= g if reduction == "none" else g * scale
        return p.T

    return Result(y, (vjp,))


class _Softmax(NamedTuple):
    """What this rank has of the softmax: numbers of each sample, and of each rank and sample."""

    exponentials: Array  # (classes of this rank, N): exp(z - maximum of this rank)
    chosen: Array  # flat indices into it: where labels are here
    rank: int
    maximum: Array  # (ranks, N), as are the next three
    total: Array
    logit: Array
    predicted_here: Array

    @classmethod
    def of(cls, z: Array, labels: Array, classes: range, comm: Comm) -> "_Softmax":
        """Computed on the transpose, as in `cross_entropy`; all ranks call it."""
        xp, n = xp_of(z), len(labels)
        here = (labels >= classes.start) & (labels < classes.stop)
        samples = xp.arange(n)[here]
        rows = labels[here].astype("int64") - classes.start
        s = z.T.copy()
        table = xp.zeros((comm.size, 4, n), xp.promote_types(z.dtype, np.float32))
        mine = table[comm.rank]
        mine[0] = s.max(axis=0)
        mine[2, samples] = s[rows, samples]
        mine[3] = s.argmax(axis=0) + classes.start
        top = mine[0].astype(z.dtype)
        s -= xp.where(top == -np.inf, z.dtype.type(0), top)  # -inf - -inf would be nan
        e = xp.exp(s, out=s)
        mine[1] = column_sum(e)
        comm.all_gather(table)
        return cls(e, rows * n + samples, comm.rank, *(table[:, k] for k in range(4)))

    def _sum(self) -> tuple[Array, Array]:
        """The maximum of all classes, and the sum of exponentials above it."""
        xp = xp_of(self.maximum)
        top = self.maximum.max(axis=0)
        return top, (self.total * xp.exp(self.maximum - top)).sum(axis=0)

    def losses(self) -> Array:
        """The loss of each sample."""
        xp, (top, total) = xp_of(self.maximum), self._sum()
        return (xp.log(total) - (self.logit.sum(axis=0) - top)).astype(self.exponentials.dtype)

    def probabilities(self) -> Array:
        """The softmax of this rank's classes (classes, N)."""
        xp, (top, total) = xp_of(self.maximum), self._sum()
        factor = xp.exp(self.maximum[self.rank] - top) / total
        p: Array = self.exponentials * factor.astype(self.exponentials.dtype)
        return p

    def predicted(self) -> Array:
        """The class with the largest logit, the first of equal ones, of each sample."""
        xp = xp_of(self.maximum)
        rank = self.maximum.argmax(axis=0)  # the first of equal ones has the lower classes
        return self.predicted_here[rank, xp.arange(len(rank))].astype("int64")

"""Classification losses with weights, ignored labels and smoothing.

    scores  (N, C, ...)
    labels  (N, ...)
    loss    -sum_c t[c] logp[c],   t[c] = (1 - s) w[label] [c == label] + s / C w[c]

The loss is 0 where a label is ignored. The mean divides by the sum of w[label] over the other
labels, and is 0 if that sum is 0. The code works on the transpose (C, n), n = N ...
"""

from __future__ import annotations

from typing import Any, NamedTuple

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import Result, column_sum
from nnmpi.arrays.kernels.linear import matmul
from nnmpi.arrays.kernels.precision import widened
from nnmpi.arrays.kernels.softmax import class_losses, sum_losses_loop
from nnmpi.autograd.ops.softmax import like_rows, rows_of

IGNORED = -100
"""PyTorch's default of `ignore_index`."""


class Labels(NamedTuple):
    """The labels of n samples: their class numbers, a mask that is False where a label is ignored,
    and the weight of each, 0 where it is ignored."""

    classes: Array  # 0 where the label is ignored, so that it can be used as an index
    kept: Array  # False where the label is ignored
    counts: Array  # the weight of the class, 0 where the label is ignored; in the type of sums

    @classmethod
    def of(cls, labels: Array, weight: Array | None, ignore_index: int, dtype: Any) -> Labels:
        """Flattens labels and looks up their weights, 1 without `weight`, in the type of sums of
        `dtype`; labels equal to `ignore_index` become class 0 with weight 0."""
        labels = labels.reshape(-1).astype("int64", copy=False)
        kept, dtype = labels != ignore_index, types_of(dtype).sums
        labels = labels * kept
        counts = kept.astype(dtype)
        if weight is not None:
            counts = weight.astype(dtype)[labels] * counts
        return cls(labels, kept, counts)

    def reduced(self, losses: Array, reduction: str) -> tuple[Array, Any]:
        """Reduces the losses of samples to "mean", "sum" or "none"; returns the reduced loss, and
        the factor by which the gradient of each sample's loss is multiplied."""
        if reduction == "none":
            return losses, 1.0
        sums, scale = _sum(losses), 1.0
        if reduction == "mean":
            total = self.counts.sum()
            scale = (total != 0) / (total + (total == 0))
            sums = sums * scale
        return sums.astype(losses.dtype, copy=False), scale


def _sum(losses: Array) -> Array:
    """Returns the sum of losses in the type of sums; on a device it has the bits of the sum of a
    cross-entropy that ignores no labels."""
    dtype = types_of(losses.dtype).sums
    if of(losses).is_host:
        return losses.sum(dtype=dtype)
    total = xp_of(losses).empty((), dtype)
    sum_losses_loop(losses, total, 1.0)
    return total


class Smoothing(NamedTuple):
    """Label smoothing: the target of a sample is its label, except for a `share` (0 to 1), which is
    spread over all classes in proportion to the classes' weights."""

    share: float
    spread: Array  # share / C w[c], for the classes of this rank
    total: Any  # the sum of share / C w[c] over all classes

    @classmethod
    def of(cls, share: float, weight: Array, classes: slice = slice(None)) -> Smoothing | None:
        """Returns the smoothing with this share, given the weights of all classes, of which this
        rank holds `classes`; None if `share` is 0."""
        spread = weight * (share / len(weight))
        return cls(share, spread[classes], spread.sum()) if share else None

    def losses(self, labels: Labels, log_total: Array, chosen: Array, spread: Array) -> Array:
        """Returns the losses of samples with label smoothing, (n,).

        log_total   the logarithm of the sum of e^score of each sample
        chosen      the score of each sample's label
        spread      the sum over classes of each sample's scores, weighted by `self.spread`
        """
        certain = (1 - self.share) * labels.counts * (log_total - chosen)
        return certain + labels.kept * (self.total * log_total - spread)


def gradient(
    p: Array, at: Array, held: Any, labels: Labels, smoothing: Smoothing | None, g: Array
) -> Array:
    """Returns the gradient of the scores, (p sum(t) - t) g, where t are the target weights of the
    classes; it overwrites the softmax p (C, n).

    at     flat indices into p: the entry of the label of each sample
    held   1; or, if p has only some classes, for each sample 1 if its label is among these, else 0
    g      the gradient of each sample's loss
    """
    if smoothing is None:
        p.reshape(-1)[at] -= held
        p *= (labels.counts * g).astype(p.dtype)
        return p
    certain, evenly = (1 - smoothing.share) * labels.counts * g, labels.kept * g
    p *= (certain + smoothing.total * evenly).astype(p.dtype)
    p -= (smoothing.spread[:, None] * evenly).astype(p.dtype)
    p.reshape(-1)[at] -= (certain * held).astype(p.dtype)
    return p


@widened
def weighted_cross_entropy(
    z: Array,
    labels: Array,
    *,
    weight: Array | None = None,
    ignore_index: int = IGNORED,
    smoothing: float = 0.0,
    reduction: str = "mean",
) -> Result:
    """The cross-entropy of scores z (N, C, ...) and labels (N, ...), with class weights (C,), label
    smoothing and ignored labels, as in PyTorch."""
    if weight is None and not smoothing and not of(z).is_host:
        return _by_rows(z, labels, ignore_index, reduction)
    xp, target = xp_of(z), Labels.of(labels, weight, ignore_index, z.dtype)
    n, shape = len(target.classes), z.shape
    at = target.classes * n + xp.arange(n)  # flat indices into s
    s = _transposed(z).copy()
    s -= s.max(axis=0)
    e = xp.exp(s)
    total = column_sum(e)
    log_total, chosen = xp.log(total), s.reshape(-1)[at]
    class_weights = xp.ones(len(s), z.dtype) if weight is None else weight.astype(z.dtype)
    soft = Smoothing.of(smoothing, class_weights)
    if soft is None:
        losses = target.counts * (log_total - chosen)
    else:
        losses = soft.losses(target, log_total, chosen, matmul(soft.spread, s))
    y, scale = target.reduced(_kept(losses, target, labels.shape, z.dtype), reduction)

    def vjp(g: Array, out: Array | None) -> Array:
        g = (g.reshape(-1) if reduction == "none" else g) * scale
        return _back(gradient(e / total, at, 1, target, soft, g), shape)

    return Result(y, (vjp,))


def _by_rows(z: Array, labels: Array, ignore_index: int, reduction: str) -> Result:
    """The cross-entropy of scores z (N, C, ...) on a device, without weights and smoothing."""
    rows, of_rows = rows_of(z), labels.reshape(-1)
    loss, (vjp_rows,), *_ = class_losses(rows, of_rows, reduction, False, int(ignore_index))

    def vjp(g: Array, out: Array | None) -> Array:
        return like_rows(vjp_rows(g.reshape(-1) if g.ndim else g, None), z.shape)

    return Result(loss.reshape(labels.shape) if loss.ndim else loss, (vjp,))


def nll(
    logp: Array,
    labels: Array,
    *,
    weight: Array | None = None,
    ignore_index: int = IGNORED,
    reduction: str = "mean",
) -> Result:
    """The negative log-likelihood of log-probabilities (N, C, ...) and labels (N, ...)."""
    xp, target = xp_of(logp), Labels.of(labels, weight, ignore_index, logp.dtype)
    s, shape, dtype = _transposed(logp), logp.shape, logp.dtype
    of_s, rows = s.shape, xp.arange(len(target.classes))
    losses = _kept(-s[target.classes, rows] * target.counts, target, labels.shape, logp.dtype)
    y, scale = target.reduced(losses, reduction)

    def vjp(g: Array, out: Array | None) -> Array:
        g = (g.reshape(-1) if reduction == "none" else g) * scale
        d = xp.zeros(of_s, dtype)
        d[target.classes, rows] = -g * target.counts
        return _back(d, shape)

    return Result(y, (vjp,))


def _transposed(z: Array) -> Array:
    """Returns scores z (N, C, ...) as (C, n): a row for each class, and a column for each label."""
    return xp_of(z).moveaxis(z, 1, 0).reshape(z.shape[1], z.size // z.shape[1])


def _back(d: Array, shape: tuple[int, ...]) -> Array:
    """Returns d (C, n), which has a column for each label, as an array of `shape` (N, C, ...)."""
    n, c, *rest = shape
    return xp_of(d).moveaxis(d.reshape(c, n, *rest), 0, 1)


def _kept(losses: Array, target: Labels, shape: tuple[int, ...], dtype: Any) -> Array:
    """Returns the losses, (n,), as an array of `shape`, the shape of the labels, and of `dtype`.
    The losses of labels that `target` marks as ignored become 0, even if they are NaN."""
    kept = xp_of(losses).where(target.kept, losses, 0)
    return kept.astype(dtype, copy=False).reshape(shape)

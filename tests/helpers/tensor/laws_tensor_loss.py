"""Laws of the cross-entropy over sharded classes, on any Comm."""

from itertools import product
from typing import Any

import numpy as np

from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.nn import CrossEntropyLoss
from nnmpi.parallel.tensor.loss import ShardedCrossEntropyLoss

CLASSES, N = 9, 7
KINDS = ("plain", "ties", "large", "minus infinity", "nan")
REDUCTIONS = ("mean", "sum", "none")


def _bounds(comm: Comm) -> list[tuple[int, ...]]:
    """Even and uneven ones."""
    size = comm.size
    even = tuple(CLASSES * r // size for r in range(size + 1))
    return [even, (0, *range(CLASSES - size + 1, CLASSES), CLASSES)]


def _logits(kind: str) -> np.ndarray:
    z = 3 * np.random.default_rng(5).standard_normal((N, CLASSES))
    if kind == "ties":
        z = np.round(z)
        z[0] = 1.0
    if kind == "large":
        z = 1e4 * z
    if kind == "minus infinity":
        z[:, 5:] = -np.inf
    if kind == "nan":
        z[2, 6] = np.nan
    return z


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ignored": {"ignore_index": 3},
    "weighted": {"weight": np.linspace(0.2, 3, CLASSES)},
    "smoothed": {"label_smoothing": 0.3},
    "all": {"weight": np.linspace(0.2, 3, CLASSES), "ignore_index": 3, "label_smoothing": 0.3},
}


def losses_equal_the_ordinary_one(comm: Comm) -> None:
    for kind, reduction, dtype in product(KINDS, REDUCTIONS, ("float64", "float32")):
        _equals_the_ordinary_loss(comm, kind, reduction, dtype)


def losses_with_every_option_equal_the_ordinary_one(comm: Comm) -> None:
    for how, reduction in product(OPTIONS, REDUCTIONS):
        _equals_the_ordinary_loss(comm, "plain", reduction, "float64", how)


def _equals_the_ordinary_loss(
    comm: Comm, kind: str, reduction: str, dtype: str, how: str = "plain"
) -> None:
    z, labels = _logits(kind).astype(dtype), np.arange(N) % 5
    options = {**OPTIONS[how], "reduction": reduction}
    whole = Tensor(z, requires_grad=True)
    wanted = CrossEntropyLoss(**options)(whole, labels)
    g = np.ones_like(wanted.array) + np.arange(wanted.size).reshape(wanted.shape)
    wanted.backward(g)
    bound = 1e-12 if dtype == "float64" else 1e-5
    for bounds in _bounds(comm):
        own = slice(*bounds[comm.rank : comm.rank + 2])
        part = Tensor(z[:, own].copy(), requires_grad=True)
        loss_of = ShardedCrossEntropyLoss(comm, bounds, **options)
        got, twice = loss_of(part, labels), np.repeat(z, 2, axis=1)  # as behind Flatten
        np.testing.assert_array_equal(loss_of.whole(part), z)
        channels = slice(2 * own.start, 2 * own.stop)
        np.testing.assert_array_equal(loss_of.whole(Tensor(twice[:, channels].copy())), twice)
        assert got.dtype == wanted.dtype
        np.testing.assert_allclose(got.array, wanted.array, rtol=bound, atol=bound)
        got.backward(g)
        np.testing.assert_allclose(
            part.grad_array, whole.grad_array[:, own], rtol=bound, atol=bound
        )
        same = np.empty((comm.size, got.size), dtype)
        same[comm.rank] = got.array.reshape(-1)
        comm.all_gather(same)
        np.testing.assert_array_equal(same, np.broadcast_to(same[0], same.shape))


def evaluation_equals_argmax(comm: Comm) -> None:
    for kind, label in product(KINDS, range(CLASSES)):
        z = _logits(kind)
        labels = np.full(N, label)
        wanted = CrossEntropyLoss(ignore_index=3, reduction="sum").evaluate(Tensor(z), labels)
        for bounds in _bounds(comm):
            part = Tensor(z[:, slice(*bounds[comm.rank : comm.rank + 2])])
            loss = ShardedCrossEntropyLoss(comm, bounds, ignore_index=3, reduction="sum")
            total, *correct = loss.evaluate(part, labels)
            np.testing.assert_allclose(total, wanted[0], rtol=1e-12)
            assert correct == [*wanted[1:]]


def logits_never_travel(comm: Comm) -> None:
    """Four or five numbers a sample and rank, in one gather, and nothing on the way back."""
    n, classes = 50, 400
    bounds = tuple(classes * r // comm.size for r in range(comm.size + 1))
    own = bounds[comm.rank + 1] - bounds[comm.rank]
    z = Tensor(np.zeros((n, own), np.float32), requires_grad=True)
    for options, numbers in (({}, 4), ({"label_smoothing": 0.1}, 5)):
        comm.ledger.reset()
        ShardedCrossEntropyLoss(comm, bounds, **options)(z, np.zeros(n, np.int64)).backward()
        assert sum(comm.ledger.sent_bytes) == (comm.size - 1) * n * numbers * 4

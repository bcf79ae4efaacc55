"""A batch cut over ranks, and the layers that need all of it: as on one rank, sample for sample."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from helpers.datafiles import refused
from helpers.device import DEVICE, needs_device

import nnmpi
from nnmpi import nn
from nnmpi.arrays.backend import CPU, Backend, to_host
from nnmpi.autograd.ops.norm import joined, moments
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.models import digits_cnn
from nnmpi.nn.passes import LOCAL, BatchStats, Pass, current_pass
from nnmpi.parallel.batch_stats import Synced


def rows() -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 4), nn.GELU()),
        *(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3)),
    )


def images() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(24, 3)),
    )


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "rows": (rows, (5,)),
    "images": (images, (2, 4, 6)),
    "digits-cnn": (digits_cnn, (1, 8, 8)),
}
nets = pytest.mark.parametrize("name", NETS)
SPLITS = [(7,), (4, 3), (7, 0), (0, 7), (3, 0, 4), (2, 4, 1), (0, 0, 7), (1, 0, 5, 2)]
SPLITS += [(1, 1), (1, 1, 1), (1, 1, 1, 1), (1, 0, 1)]  # one sample on each rank is enough


class Task(NamedTuple):
    """A net, a whole batch of it, and where and in which type that is."""

    make: Callable[[], nn.Module]
    x: np.ndarray
    y: np.ndarray
    dtype: str = "float64"
    on: Backend = CPU


def task(name: str, n: int, dtype: str = "float64", on: Backend = CPU) -> Task:
    make, shape = NETS[name]
    rng = np.random.default_rng(n)
    return Task(make, 2 + rng.standard_normal((n, *shape)), rng.integers(0, 3, n), dtype, on)


class Step(NamedTuple):
    """What a step gives: the loss's part, outputs, gradients and buffers, all on the host."""

    loss: float
    y: np.ndarray
    dx: np.ndarray
    grads: list[np.ndarray]
    buffers: list[np.ndarray]


def step(t: Task, stats: BatchStats, samples: np.ndarray, move: Any = None) -> Step:
    """Forward and backward of these samples; the loss is a mean over the whole batch.

    `move`: what is added to the parameters first.
    """
    model = t.make().to(t.dtype, t.on)
    for p, d in zip(model.parameters(), move or [], strict=move is not None):
        p.data += d
    x = nnmpi.tensor(t.x[samples], t.dtype, requires_grad=True, on=t.on)
    token = current_pass.set(Pass(3, samples, stats))
    try:
        y = model(x)
    finally:
        current_pass.reset(token)
    loss = nn.CrossEntropyLoss(reduction="sum")(y, t.y[samples])
    loss.backward(t.on.asarray(np.asarray(1 / len(t.y))))
    for array in (y.array, x.grad_array, *(t.array for t in model.buffers())):
        assert type(array) is t.on.xp.ndarray
    assert (y.dtype, x.grad.dtype) == (t.dtype, t.dtype)
    return Step(
        loss.item(),
        y.numpy(),
        to_host(x.grad_array),
        [to_host(p.grad_array).copy() for p in model.parameters()],
        [to_host(t.array) for t in model.buffers()],
    )


def steps(t: Task, split: tuple[int, ...], move: Any = None) -> list[Step]:
    """The same step of every rank, of which rank r has split[r] samples."""
    parts = np.split(np.arange(len(t.y)), np.cumsum(split)[:-1])

    def rank(comm: Comm) -> Step:
        return step(t, Synced(comm), parts[comm.rank], move)

    return threads.run(len(split), rank)


def close(a: np.ndarray, b: np.ndarray, least: float = 0.0, bound: float = 1e-12) -> None:
    """max|a - b| within a bound relative to max|b|, or to what a gradient counts at least."""
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= bound * max(np.abs(b).max(initial=0), least)


def same(parts: list[Step], whole: Step, bound: float = 1e-12) -> None:
    """The ranks' steps together are the step of one rank, which had the whole batch."""
    close(np.sum([s.loss for s in parts]), np.asarray(whole.loss), bound=bound)
    close(np.concatenate([s.y for s in parts]), whole.y, bound=bound)
    largest = max(np.abs(g).max() for g in whole.grads)
    close(np.concatenate([s.dx for s in parts]), whole.dx, largest, bound)
    for *partial, g in zip(*(s.grads for s in parts), whole.grads, strict=True):
        close(np.sum(partial, axis=0), g, largest, bound)
    for *copies, b in zip(*(s.buffers for s in parts), whole.buffers, strict=True):
        close(copies[0], b, bound=bound)
        assert {c.tobytes() for c in copies} == {copies[0].tobytes()}


@nets
@pytest.mark.parametrize("split", SPLITS, ids=str)
def test_ranks_give_what_one_rank_gives(name: str, split: tuple[int, ...]) -> None:
    t = task(name, sum(split))
    parts = steps(t, split)
    same(parts, step(t, LOCAL, np.arange(len(t.y))))
    assert [int(b) for b in parts[-1].buffers if b.shape == ()] == [1, 1]
    for n, part in zip(split, parts, strict=True):
        assert len(part.y) == n
        assert all(np.any(g) for g in part.grads) == (n > 0)
        assert any(np.any(g) for g in part.grads) == (n > 0)


@nets
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_rank_gives_the_bits_of_no_ranks(name: str, dtype: str) -> None:
    t = task(name, 6, dtype)
    whole, (part,) = step(t, LOCAL, np.arange(6)), steps(t, (6,))
    assert part.loss == whole.loss
    for a, b in zip(
        [part.y, part.dx, *part.grads, *part.buffers],
        [whole.y, whole.dx, *whole.grads, *whole.buffers],
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)


@nets
def test_float32_on_ranks_differs_by_rounding(name: str) -> None:
    """Winograd's convolutions and their fused forms take part; so does a rank without samples."""
    t = task(name, 7, "float32")
    same(steps(t, (3, 0, 4)), step(t, LOCAL, np.arange(7)), 2e-5)


@needs_device
@pytest.mark.parametrize("split", [(6,), (4, 0, 2)], ids=str)
def test_ranks_on_a_device_give_what_the_host_gives(split: tuple[int, ...]) -> None:
    for name in NETS:
        whole = step(task(name, 6), LOCAL, np.arange(6))
        same(steps(task(name, 6, on=DEVICE), split), whole, 1e-10)


@pytest.mark.parametrize("name", ["rows", "images"])
@pytest.mark.parametrize("split", [(2, 5), (6, 0)], ids=str)
def test_gradients_are_those_of_the_sum_over_ranks(name: str, split: tuple[int, ...]) -> None:
    """Along a random direction of all parameters and the input; differences of fourth order."""
    t, h = task(name, sum(split)), 1e-4
    rng = np.random.default_rng(0)
    dp = [rng.standard_normal(p.shape) for p in t.make().parameters()]
    dx = rng.standard_normal(t.x.shape)

    def loss(k: float) -> float:
        moved = t._replace(x=t.x + k * dx)
        return sum(s.loss for s in steps(moved, split, [k * d for d in dp])) / len(t.y)

    parts = steps(t, split)
    slope = np.vdot(np.concatenate([s.dx for s in parts]), dx)
    slope += sum(np.vdot(g, d) for s in parts for g, d in zip(s.grads, dp, strict=True))
    assert abs(slope) > 1e-2
    found = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h)
    assert abs(found - slope) <= 1e-9 * abs(slope)


@pytest.mark.parametrize("split", [(1, 0), (0, 1, 0), (0, 0)], ids=str)
def test_one_sample_on_all_ranks_together_is_refused(split: tuple[int, ...]) -> None:
    with refused("BatchNorm1d: one number per channel has no variance"):
        steps(task("rows", sum(split)), split)


@pytest.mark.parametrize("cuts", [(), (5,), (0, 3), (1, 1, 4), (2, 9, 9)], ids=str)
def test_joined_moments_are_those_of_all_numbers(cuts: tuple[int, ...]) -> None:
    """Far from zero, where E[x^2] - E[x]^2 would not have a single digit left."""
    x = 1e8 + np.random.default_rng(0).standard_normal((9, 4))
    whole = joined([moments(part) for part in np.split(x, cuts)])
    assert whole.n == 9
    np.testing.assert_allclose(whole.mean, x.mean(0), rtol=1e-15)
    np.testing.assert_allclose(whole.m2, ((x - x.mean(0)) ** 2).sum(0), rtol=1e-7)

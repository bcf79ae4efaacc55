"""Checks of the assignment data-parallelism: equality with one rank, the order of sums, bytes."""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy import ndarray
from numpy.random import Generator

from classroom import (
    Check,
    Collectives,
    FaultError,
    Finding,
    counted,
    differs,
    explained,
    first,
    needed,
)
from classroom.adam import ADAM, adam, alone, parts, wrong_values
from classroom.compare import times
from classroom.remote import held_bytes
from classroom.traffic import Sums, sent
from nnmpi.comm import Comm

ALLOWED: dict[str, tuple[str, ...]] = {}
RANKS = (1, 2, 3, 4, 8)
SHAPES = ((5, 7), (7,), (7, 4), (4,), (4, 3), (3,))
MOST = 8 * 34
BUCKETS = [[5, 4, 3], [2], [1], [0]]
"""The buckets of SHAPES with at most MOST bytes: 19, 28, 7 and 35 numbers."""
SAMPLES, MICRO_BATCHES = 11, 3
"""Micro-batches of 3, 4 and 4 samples: uneven, and none for some of 8 ranks."""


def samples_of(n: int, micro_batches: int, rank: int, size: int) -> list[slice]:
    inner = [(m.start, parts(m.stop - m.start, size)[rank]) for m in parts(n, micro_batches)]
    return [slice(start + part.start, start + part.stop) for start, part in inner]


# ---- lists: samples and buckets


def samples(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    for n, M in ((12, 1), (SAMPLES, 1), (SAMPLES, MICRO_BATCHES), (int(rng.integers(20, 40)), 4)):
        got, expected = (f(n, M, comm.rank, comm.size) for f in (adapters.own_samples, samples_of))
        is_list = isinstance(got, list) and all(isinstance(s, slice) for s in got)
        if not is_list or got != expected:
            call = f"own_samples({n}, {M}, {comm.rank}, {comm.size})"
            return Finding(comm.rank, f"{call} is {got}, expected {expected}")
    return None


def buckets(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    sizes = [8 * prod(shape) for shape in SHAPES]
    cases = {
        (tuple(sizes), MOST): BUCKETS,
        (tuple(sizes), 8): [[5], [4], [3], [2], [1], [0]],
        (tuple(sizes), sum(sizes)): [[5, 4, 3, 2, 1, 0]],
        ((8, 16, 8, 8), 16): [[3, 2], [1], [0]],
        ((16, 8, 800, 8), 24): [[3], [2], [1, 0]],
    }
    for (nbytes, most), expected in cases.items():
        got = adapters.cut_buckets([*nbytes], most)
        if not isinstance(got, list) or got != expected:
            call = f"cut_buckets({[*nbytes]}, {most})"
            return Finding(comm.rank, f"{call} is {got}, expected {expected}")
    return None


# ---- gradients


def gradients(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """Two steps with gradients of samples that are drawn, so that the mean is known."""
    sync = adapters.GradientSync(Collectives(comm), [*SHAPES], MOST)
    mine, wrong = samples_of(SAMPLES, MICRO_BATCHES, comm.rank, comm.size), None
    last = [np.zeros(shape) for shape in SHAPES]
    counts = [s.stop - s.start for s in mine]
    for step in range(2):
        drawn = [rng.standard_normal((SAMPLES, *shape)) for shape in SHAPES]
        sync.begin([*counts], SAMPLES)
        changed = None
        for m, part in enumerate(mine):
            for i in reversed(range(len(SHAPES))):
                gradient = mean(drawn[i][part])
                sync.ready(m, i, given := gradient.copy())
                label = f"after ready({m}, {i}, ...), its argument"
                changed = changed or differs(comm.rank, given, gradient, label, step)
        got = [g.copy() for g in finished(sync, SHAPES)]
        each = zip(range(len(SHAPES)), got, drawn, last, strict=True)
        wrong = wrong or changed or first(*(wrong_mean(comm, step, *case) for case in each))
        last = [d.mean(axis=0) for d in drawn]
    return wrong


def finished(sync: Any, shapes: Sequence[tuple[int, ...]]) -> list[ndarray]:
    """The gradients that `finish` returns."""
    got = sync.finish()
    if not isinstance(got, list | tuple) or len(got) != len(shapes):
        raise FaultError(f"finish() returned no list of {len(shapes)} arrays")
    names = [f"the gradient of parameter {i}" for i in range(len(shapes))]
    return [needed(g, shape, name) for g, shape, name in zip(got, shapes, names, strict=True)]


def mean(samples: ndarray) -> ndarray:
    """The mean over samples, zeros if there are none."""
    return np.asarray(samples.sum(axis=0) / max(len(samples), 1))


def wrong_mean(
    comm: Comm, step: int, i: int, got: ndarray, drawn: ndarray, last: ndarray
) -> Finding | None:
    """Compares a gradient with the mean over the samples; names well-known wrong means."""
    expected, size, M = drawn.mean(axis=0), comm.size, MICRO_BATCHES
    cut = [samples_of(SAMPLES, M, rank, size) for rank in range(size)]
    means = np.array([[mean(drawn[part]) for part in of_rank] for of_rank in cut])
    counts = np.array([[part.stop - part.start for part in of_rank] for of_rank in cut])
    shares = np.einsum("rm,rm...->m...", counts / SAMPLES, means)
    of_ranks, of_micro_batches = counts.sum(1), counts.sum(0)
    sums = np.einsum("rm,rm...->rm...", counts, means)
    wrong = differs(comm.rank, got, expected, f"the gradient of parameter {i}", step)
    hints = {
        "the gradient of the last step is still in it": expected + last,
        "the sum of the means, which have to be weighted by samples / total": means.sum((0, 1)),
        "the mean of micro-batch means: weight them by samples / total": np.einsum(
            "m,rm...->...", 1 / of_micro_batches / M, sums
        ),
        "the mean of the ranks' means: weight them by samples / total": np.einsum(
            "r,rm...->...", 1 / np.maximum(of_ranks, 1) / size, sums
        ),
        "the mean of the means of ranks and micro-batches: weight them by samples / total": (
            means.mean((0, 1))
        ),
        "this is the share of the last micro-batch alone": shares[-1],
        "each micro-batch has the weight of the last one": np.einsum(
            "r,rm...->...", counts[:, -1] / SAMPLES, means
        ),
        "this is the share of this rank alone, no sum over ranks": np.einsum(
            "m,m...->...", counts[comm.rank] / SAMPLES, means[comm.rank]
        ),
    }
    return explained(wrong, got, hints)


# ---- the order of sums, on paper


def overlap(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """The last gradient of a bucket, in the last micro-batch, starts its sum; finish waits."""
    paper = Sums(comm.rank, comm.size)
    sync = adapters.GradientSync(paper, [*SHAPES], MOST)
    sync.begin([2] * MICRO_BATCHES, 2 * MICRO_BATCHES * comm.size)
    for m in range(MICRO_BATCHES):
        final = set[int]()
        for i in reversed(range(len(SHAPES))):
            sync.ready(m, i, np.ones(SHAPES[i]))
            final |= {i} if m == MICRO_BATCHES - 1 else set()
            wrong = wrong_start(paper, m, i, final)
            if wrong:
                return Finding(comm.rank, wrong)
    sync.finish()
    missing = {*range(len(paper.started))} - {*paper.waited}
    if missing:
        return Finding(comm.rank, f"finish() returned before sum {min(missing)} was waited for")
    return None


def wrong_start(paper: Sums, m: int, i: int, final: set[int]) -> str:
    """Says what is wrong with the sums that are started after ready(m, i, ...)."""
    complete = sum(final.issuperset(bucket) for bucket in BUCKETS)
    started = len(paper.started)
    have = f"after ready({m}, {i}, ...) {started} sums are started, expected {complete}"
    if paper.waited:
        return f"ready({m}, {i}, ...) waits for a sum: no sum overlaps with the backward pass"
    if started > complete and not final:
        return f"{have}: gradients of micro-batch {m + 1} are still to be added"
    if started > complete:
        return f"{have}: bucket {BUCKETS[complete]} has gradients that are not final"
    if started < complete:
        return f"{have}: all gradients of bucket {BUCKETS[started]} are final"
    return ""


def same_order(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """Gradients become final in another order on each rank; sums start in one order."""
    orders = [[int(i) for i in rng.permutation(len(SHAPES))] for _ in range(comm.size)]
    order = orders[comm.rank] if comm.rank else [*range(len(SHAPES))]  # bucket 0 is the last here
    paper = Sums(comm.rank, comm.size)
    sync = adapters.GradientSync(paper, [*SHAPES], MOST)
    sync.begin([1], comm.size)
    for i in order:
        sync.ready(0, i, np.ones(SHAPES[i]))
    sync.finish()
    got = [array.size for array in paper.started]
    expected = [sum(prod(SHAPES[i]) for i in bucket) for bucket in BUCKETS]
    if got == expected:
        return None
    text = f"sums of {got} numbers are started when gradients are final in the order {order}"
    return Finding(comm.rank, f"{text}, expected {expected}: the order of cut_buckets on all ranks")


def bytes_of_sums(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    sync = adapters.GradientSync(Collectives(comm), [*SHAPES], MOST)

    def step() -> None:
        sync.begin([1] * MICRO_BATCHES, MICRO_BATCHES * comm.size)
        for m in range(MICRO_BATCHES):
            for i in reversed(range(len(SHAPES))):
                sync.ready(m, i, np.ones(SHAPES[i]))
        sync.finish()

    expected = 2 * (comm.size - 1) * sum(map(prod, SHAPES)) * 8
    label = f"bytes sent by all ranks in a step of {MICRO_BATCHES} micro-batches"
    return counted(comm.rank, sent(comm, step)[1], expected, label)


# ---- training


def losses(values: Sequence[ndarray], x: ndarray, y: ndarray) -> Iterator[tuple[int, ndarray]]:
    """The gradients of the mean loss of a network with two layers, (i, gradient), last first."""
    W1, b1, W2, b2 = values
    h = np.tanh(x @ W1 + b1)
    d = (h @ W2 + b2 - y) / max(len(x), 1)
    yield 3, d.sum(axis=0)
    yield 2, h.T @ d
    d = d @ W2.T * (1 - h * h)
    yield 1, d.sum(axis=0)
    yield 0, x.T @ d


def training(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    """Ten steps on batches of 13, 13 and 5 samples, beside one rank with the whole batch."""
    shapes = [(4, 6), (6,), (6, 3), (3,)]
    start = [rng.standard_normal(shape) for shape in shapes]
    x, y = rng.standard_normal((31, 4)), rng.standard_normal((31, 3))
    sync = adapters.GradientSync(Collectives(comm), shapes, 8 * 25)
    mine, alone, wrong = [v.copy() for v in start], [v.copy() for v in start], None
    for step in range(10):
        rows = [*range(31)][13 * (step % 3) : 13 * (step % 3) + 13]
        batch, goal = x[rows], y[rows]
        cut = samples_of(len(rows), 2, comm.rank, comm.size)
        sync.begin([len(batch[part]) for part in cut], len(rows))
        for m, part in enumerate(cut):
            for i, g in losses(mine, batch[part], goal[part]):
                sync.ready(m, i, g)
        for v, g in zip(mine, finished(sync, shapes), strict=True):
            v -= 0.1 * g
        for i, g in losses([v.copy() for v in alone], batch, goal):
            alone[i] -= 0.1 * g
        each = zip(mine, alone, ("W1", "b1", "W2", "b2"), strict=True)
        wrong = wrong or first(*(differs(comm.rank, a, b, name, step) for a, b, name in each))
    return wrong


# ---- the sharded optimizer


def sharded_adam(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    wrong = None
    for n in (48, 37, 5):  # even parts; uneven parts; on 8 ranks also empty parts
        values = rng.standard_normal(n)
        mine, m, v = values.copy(), np.zeros(n), np.zeros(n)
        optimizer = adapters.ShardedAdam(Collectives(comm), mine, **ADAM)
        for step in range(5):
            shares, last = rng.standard_normal((comm.size, n)), mine.copy()
            optimizer.step(shares[comm.rank].copy())
            adam(values, m, v, shares.sum(axis=0), step + 1)
            hints = {"the gradient is the share of one rank, not the sum": alone(shares, last)}
            wrong = wrong or wrong_values(comm, mine, values, last, step, hints)
    return wrong


def state(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    n = 203
    values = rng.standard_normal(n)
    optimizer = adapters.ShardedAdam(Collectives(comm), values, **ADAM)
    optimizer.step(np.ones(n))
    held = held_bytes(optimizer, [values])
    part = parts(n, comm.size)[comm.rank]
    needs = 2 * 8 * (part.stop - part.start)
    if held == needs:
        return None
    factor = f" ({times(held / needs)})" if held and needs else ""
    text = f"the optimizer holds {held} bytes of arrays, expected {needs}{factor}"
    of = f"m and v of the {needs // 16} of {n} parameters of this rank"
    return Finding(comm.rank, f"{text}: {of}")


def bytes_of_zero(comm: Comm, adapters: Any, rng: Generator) -> Finding | None:
    n = 101
    optimizer = adapters.ShardedAdam(Collectives(comm), np.zeros(n), **ADAM)
    _, count = sent(comm, lambda: optimizer.step(np.ones(n)))
    label = "bytes sent by all ranks in a step: half for a reduce-scatter, half for an all-gather"
    return counted(comm.rank, count, 2 * (comm.size - 1) * n * 8, label)


CHECKS = (
    Check("samples", 10, "shape", RANKS, samples),
    Check("buckets", 10, "shape", (1,), buckets),
    Check("gradients", 20, "law", RANKS, gradients),
    Check("overlap", 15, "order", (1, 4), overlap),
    Check("same order", 10, "order", (2, 4), same_order),
    Check("bytes of sums", 5, "ledger", (2, 3, 8), bytes_of_sums),
    Check("training", 10, "law", RANKS, training),
    Check("sharded Adam", 10, "law", RANKS, sharded_adam),
    Check("state", 5, "shape", (1, 3, 8), state),
    Check("bytes of ZeRO", 5, "ledger", (2, 3, 8), bytes_of_zero),
)

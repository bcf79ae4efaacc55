"""alpha, beta and gamma of the machine that a Comm runs on."""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nnmpi.collectives.price import Link, Network
from nnmpi.collectives.step import Algorithm, Ranks, Step, only

if TYPE_CHECKING:
    from nnmpi.comm.communicator import Comm

SIZES = tuple(256 << 2 * k for k in range(8))  # bytes, to 4 MiB
TURNS = 8


def _ping_pong(t: int, r: Ranks, p: int) -> Step:
    """Ranks 0 and 1, 2 and 3, ... send one buffer to and fro, all pairs at once."""
    partner = only((r ^ 1) < p, r ^ 1)
    sends = r % 2 == t % 2
    return Step(only(sends, partner), (0, 1), only(1 - sends, partner), (0, 1), False)


PING_PONG = Algorithm(lambda p: TURNS, lambda p: 1, _ping_pong)


def seconds(comm: "Comm", call: Callable[[], object], least: float = 0.01) -> float:
    """The median time of a call that all ranks make together, the same figure on every rank.

    It is repeated until that has taken `least` seconds, at least 3 times and at most 50.
    """
    call()  # makes plans and memory
    first = _agreed(comm, _timed(comm, call))
    repeats = min(max(int(least / max(first, 1e-9)), 3), 50)
    return _agreed(comm, statistics.median(_timed(comm, call) for _ in range(repeats)))


def _timed(comm: "Comm", call: Callable[[], object]) -> float:
    comm.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _agreed(comm: "Comm", figure: float) -> float:
    """The mean over the ranks."""
    total = np.array([figure])
    comm.all_reduce(total, "ring")
    return float(total[0]) / comm.size


def line(sizes: Sequence[int], times: Sequence[float]) -> Link:
    """alpha and beta such that alpha + beta n fits best, by least squares of relative errors."""
    n, t = np.asarray(sizes, float), np.asarray(times)
    a, b = np.linalg.lstsq(np.stack([1 / t, n / t], 1), np.ones_like(t), rcond=None)[0]
    return Link(max(float(a), 0.0), max(float(b), 0.0))


def network(comm: "Comm") -> Network:
    """What messages and additions cost here, while all ranks are at work. Every rank calls it."""
    times = []
    for nbytes in SIZES:
        buffer = np.zeros(nbytes, np.uint8)
        times.append(seconds(comm, partial(comm.carry_out, PING_PONG, buffer)) / TURNS)
    a, b = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    gamma = seconds(comm, lambda: np.add(a, b, out=a)) / a.nbytes
    return Network(line(SIZES, times), gamma)

"""alpha, beta and gamma of the machine that a Comm runs on, and how long calls take there."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import numpy as np

from nnmpi.collectives.price import Link, Network
from nnmpi.collectives.step import Algorithm, Ranks, Step, only
from nnmpi.comm.allreduce.interpreter import Array

SIZES = tuple(256 << 2 * k for k in range(8))  # bytes, to 4 MiB
TURNS = 8  # messages of a ping-pong
BUDGET = 0.004  # seconds for one call to be timed
BURST = 0.012  # seconds after which a link has forgotten how long it was idle
LONG = 0.05  # seconds: where one call takes longer, larger sizes are not timed


class Timed(Protocol):
    """What is timed, as far as it matters here: a Comm."""

    size: int

    def all_reduce(self, array: Array, algorithm: str = ...) -> None: ...
    def carry_out(self, algorithm: Algorithm, array: Array) -> None: ...
    def broadcast(self, array: Array) -> None: ...
    def barrier(self) -> None: ...


def _ping_pong(t: int, r: Ranks, p: int) -> Step:
    """Ranks 0 and 1, 2 and 3, ... answer each other's message with the next, both at once."""
    partner = only((r ^ 1) < p, r ^ 1)
    return Step(partner, (0, 1), partner, (1, 2), False)


PING_PONG = Algorithm(lambda p: TURNS, lambda p: 2, _ping_pong)


def ping_pong(comm: Timed, nbytes: int) -> float:
    """Seconds for a message of that many bytes, while all ranks send and receive.

    Others go before: a link may let a burst pass faster than its rate, which is what is asked for.
    """
    call = partial(comm.carry_out, PING_PONG, np.zeros(2 * nbytes, np.uint8))
    (once,) = _agreed(comm, [_timed(comm, call)])
    for _ in range(int(BURST / max(once, 1e-6))):
        call()
    (seconds,) = medians(comm, [call])
    return seconds / TURNS


def medians(comm: Timed, calls: Sequence[Callable[[], object]]) -> list[float]:
    """The median seconds of calls that all ranks make together, the same figures on every rank.

    They take turns. Each is made once before it is timed, so that its memory is in the cache.
    """
    first = [_agreed(comm, [_timed(comm, call)])[0] for call in calls]
    repeats = min(max(int(BUDGET * len(calls) / max(sum(first), 1e-9)), 5), 30)
    rows = [[_timed(comm, call) for call in calls] for _ in range(repeats)]
    return _agreed(comm, np.median(rows, axis=0).tolist())


def _timed(comm: Timed, call: Callable[[], object]) -> float:
    call()
    comm.barrier()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _agreed(comm: Timed, figures: Sequence[float]) -> list[float]:
    """The means over the ranks."""
    total = np.array(figures, float)
    comm.all_reduce(total, "ring")
    return [float(x) / comm.size for x in total]


def line(sizes: Sequence[int], times: Sequence[float]) -> Link:
    """alpha and beta such that alpha + beta n fits best, by least squares.

    An error counts by the root of the time: by the time itself, short messages would say what a
    byte costs, and not at all, long ones would say what a message costs.
    """
    n, t = np.asarray(sizes, float), np.asarray(times)
    w = t**-0.5
    a, b = np.linalg.lstsq(np.stack([w, n * w], 1), t * w, rcond=None)[0]
    return Link(max(float(a), 0.0), max(float(b), 0.0))


def network(comm: Timed) -> Network:
    """What messages and additions cost here, while all ranks are at work. Every rank calls it."""
    times: list[float] = []
    for nbytes in SIZES:
        times.append(ping_pong(comm, nbytes))
        if times[-1] * TURNS > LONG:
            break
    a, b = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.float32)
    (adding,) = medians(comm, [partial(np.add, a, b, a)])
    return Network(line(SIZES[: len(times)], times), adding / a.nbytes)

"""Workers and a parameter server on paper: who computes when, and how stale gradients are.

Only steps take time; messages and the server take none. A worker pulls parameters, computes a
gradient, pushes it, and may begin its next step unless it is more than `bound` steps ahead of the
slowest one: 0 is BSP, S is SSP with staleness S, infinity is ASP.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from nnmpi.schedules.delay import Delay
from nnmpi.sim.timeline import Span, Timeline


class Gradient(NamedTuple):
    """A step of a worker, from when it pulled until it pushed.

    staleness: gradients of others that the server has applied in between
    """

    worker: int
    step: int
    start: float
    end: float
    staleness: int


def simulate(
    bound: float, duration: Callable[[int, int], float], p: int, gradients: int
) -> list[Gradient]:
    """An epoch of p workers in the order of their pushes; a step takes duration(worker, step)."""
    clocks, pulled, began = [0] * p, [0] * p, [0.0] * p
    waiting, active = set[int](), set(range(p))
    busy, left = [(duration(w, 0), w) for w in range(p)], gradients - p
    heapq.heapify(busy)
    done: list[Gradient] = []
    while busy:
        now, w = heapq.heappop(busy)
        done.append(Gradient(w, clocks[w], began[w], now, len(done) - pulled[w]))
        clocks[w] += 1
        waiting.add(w)
        while ready := _ready(bound, clocks, active, waiting):
            w = ready[0]
            waiting.remove(w)
            if left:
                left, pulled[w], began[w] = left - 1, len(done), now
                heapq.heappush(busy, (now + duration(w, clocks[w]), w))
            else:
                active.remove(w)
    return done


def _ready(bound: float, clocks: Sequence[int], active: set[int], waiting: set[int]) -> list[int]:
    """The waiting workers that are at most `bound` steps ahead of the slowest."""
    slowest = min((clocks[w] for w in active), default=0)
    return sorted(w for w in waiting if clocks[w] - slowest <= bound)


def timeline(done: Sequence[Gradient], p: int, title: str) -> Timeline:
    """The steps as spans; between them a worker waits."""
    spans = tuple(Span(g.worker, "STEP", g.step, g.worker, g.start, g.end) for g in done)
    return Timeline(spans, p, title)


def waited(done: Sequence[Gradient], p: int) -> float:
    """The share of the workers' time in which they wait, from the start to the last push."""
    end = max(g.end for g in done)
    return 1 - sum(g.end - g.start for g in done) / (p * end)


# ---- theory: the time in which the workers compute one gradient each, over a long run


def bsp_time(delays: Sequence[Delay]) -> float:
    """The mean of the slowest worker's step.

    A worker's step takes `always` with probability 1 - share, else always * jitter. The chance
    that all take at most x is a product, and jumps only at these values of x.
    """
    points = sorted({d.always * f for d in delays for f in (1.0, d.jitter)})
    below = [math.prod(_at_most(d, x) for d in delays) for x in points]
    return points[-1] - sum((b - a) * c for (a, b), c in zip(pairwise(points), below, strict=False))


def _at_most(d: Delay, x: float) -> float:
    """The probability that a step takes at most x."""
    return (1 - d.share) * (d.always <= x) + d.share * (d.always * d.jitter <= x)


def ssp_time(delays: Sequence[Delay]) -> float:
    """What no bound can beat: all have the pace of the worker that is slowest on average."""
    return max(d.mean for d in delays)


def asp_time(delays: Sequence[Delay]) -> float:
    """Each worker has its own pace."""
    return len(delays) / sum(1 / d.mean for d in delays)

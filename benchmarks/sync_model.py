"""The cases and modes of benchmarks/sync.py, and a model of the throughput to expect.

In units of a worker's step, for p workers:

    random    a step takes 5 with probability 0.1, else 1: 1.4 on average. BSP waits for the slowest
              of p, 1 + 4 (1 - 0.9^p): 2.38 for p = 4. So the limit is 2.38 / 1.4 = 1.7 times BSP.
    one slow  BSP computes p gradients in time 3, ASP 3 (p - 1) + 1: 2.5 times BSP for p = 4. SSP
              is as fast as BSP once the other workers have reached the staleness bound.
"""

import heapq
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nnmpi.config import Config
from nnmpi.parallel.checks.slow_ranks import Delay


class Case(NamedTuple):
    """Which workers are slow, and when."""

    name: str
    slow: float = 1.0  # slowdown of the first worker
    jitter: str | None = None

    @property
    def description(self) -> str:
        """The case in words."""
        if self.jitter:
            share, factor = self.jitter.split(":")
            return f"each worker {factor}x slower at {float(share):.0%} of its steps"
        return f"one worker {self.slow:g}x slower" if self.slow > 1 else "all workers alike"

    def slow_ranks(self, workers: int, base: float) -> str:
        """The value of --slow-rank."""
        return ",".join(f"{w}:{base * (1 if w else self.slow):g}" for w in range(workers))


class Mode(NamedTuple):
    """One synchronisation mode."""

    name: str
    sync: str
    bound: float
    servers: int = 1

    @property
    def staleness(self) -> int:
        """The value of --staleness."""
        return int(self.bound) if self.sync == "ssp" else 0


CASES = {"none": Case("none"), "random": Case("random", 1, "0.1:5"), "slow": Case("one slow", 3)}
MODES = {
    "bsp": Mode("bsp", "bsp", 0),
    "allreduce": Mode("all-reduce", "bsp", 0, 0),
    "ssp1": Mode("ssp 1", "ssp", 1),
    "ssp3": Mode("ssp 3", "ssp", 3),
    "ssp10": Mode("ssp 10", "ssp", 10),
    "asp": Mode("asp", "asp", float("inf")),
}

# ---- the expected results


class Timeline(NamedTuple):
    """The arrival time and the staleness of each gradient."""

    times: list[float]
    staleness: list[int]

    def seconds(self, cold: int) -> float:
        """The time from gradient number `cold` to the last one."""
        return self.times[-1] - self.times[cold - 1]

    @property
    def mean_staleness(self) -> float:
        """The mean over all gradients."""
        return sum(self.staleness) / len(self.staleness)


def expected(case: Case, mode: Mode, p: int, steps: int, seed: int) -> Timeline:
    """The simulated run of p workers, in which the same random steps are slow."""
    config = Config(slow_rank=case.slow_ranks(p, 1), jitter=case.jitter, seed=seed)
    delays = [Delay.of(config, w, p) for w in range(p)]
    timeline = simulate(mode.bound, lambda w, step: delays[w].factor(step), p, p * steps)
    return timeline if mode.bound else timeline._replace(staleness=[0])  # BSP sums gradients first


def simulate(
    bound: float, duration: Callable[[int, int], float], p: int, gradients: int
) -> Timeline:
    """Simulate an epoch of p workers; only steps take time, duration(worker, step)."""
    clocks, pulled, waiting, active = [0] * p, [0] * p, set[int](), set(range(p))
    busy, left = [(duration(w, 0), w) for w in range(p)], gradients - p
    heapq.heapify(busy)
    timeline = Timeline([], [])
    while busy:
        now, w = heapq.heappop(busy)
        timeline.staleness.append(len(timeline.times) - pulled[w])
        timeline.times.append(now)
        clocks[w] += 1
        waiting.add(w)
        while ready := _ready(bound, clocks, active, waiting):
            w = ready[0]
            waiting.remove(w)
            if left:
                left, pulled[w] = left - 1, len(timeline.times)
                heapq.heappush(busy, (now + duration(w, clocks[w]), w))
            else:
                active.remove(w)
    return timeline


def _ready(bound: float, clocks: Sequence[int], active: set[int], waiting: set[int]) -> list[int]:
    """The waiting workers that are at most `bound` steps ahead of the slowest."""
    slowest = min((clocks[w] for w in active), default=0)
    return sorted(w for w in waiting if clocks[w] - slowest <= bound)

"""The cases and modes of benchmarks/sync.py, and a model of the throughput to expect.

In units of a worker's step, for p workers:

    random    a step takes 5 with probability 0.1, else 1: 1.4 on average. BSP waits for the slowest
              of p, 1 + 4 (1 - 0.9^p): 2.38 for p = 4. So the limit is 2.38 / 1.4 = 1.7 times BSP.
    one slow  BSP computes p gradients in time 3, ASP 3 (p - 1) + 1: 2.5 times BSP for p = 4. SSP
              is as fast as BSP once the other workers have reached the staleness bound.
"""

from typing import NamedTuple

from nnmpi.addons.simulator.commands.sync import simulate
from nnmpi.schedules.delay import Delay


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
    slow = case.slow_ranks(p, 1)
    delays = [Delay.of(slow, case.jitter, seed, w, p) for w in range(p)]
    done = simulate(mode.bound, lambda w, step: delays[w].factor(step), p, p * steps)
    staleness = [g.staleness for g in done] if mode.bound else [0]  # BSP sums gradients first
    return Timeline([g.end for g in done], staleness)

"""Goodput: the share of time in which a job that fails does work that is not lost.

    checkpoint        checkpoint     node lost    restart
    │ compute         │ compute           x░░░░░░░░░░░░░░│ compute       a cycle: every + write
    ├────────────────▓┼────────────────▓┼─ lost ─┤       ├────────────────▓┼──
                                        ↑ back to here

Nodes fail independently, at exponential times, also in checkpoints and restarts. All times are in
seconds. Goodput is computed in closed form and by an event simulation. The closed forms with copies
and spare nodes are products, which ignore that failures and missing nodes occur together: they are
inexact if failures are frequent (0.4% for four nodes, one of which fails every 100 minutes).

Left out are failures of several nodes at once, nodes that fail early or again, nodes that are slow
but do not fail, a time to restart that grows with the ranks, and damaged results.
"""

import math
import random
from collections import deque
from itertools import pairwise
from statistics import stdev
from typing import NamedTuple

BATCHES = 40  # of a simulation: their spread gives the standard error


class Backup(NamedTuple):
    """Copies of a node's state in a partner's memory, which take no time: seconds between them, and
    until the job goes on from them after a node is lost."""

    every: float
    recover: float


class Spares(NamedTuple):
    """Spare nodes that replace lost ones; when none is left, the job goes on with fewer nodes,
    until a lost one is back after `repair` seconds."""

    nodes: int
    repair: float


class Job(NamedTuple):
    """A job that fails: its nodes, and the times of checkpoints and failures in seconds.

    mttf_node: the mean time to failure of a node
    write: the time to write a checkpoint, in which nothing is computed
    restart: the time from a failure until the job computes again from its checkpoint
    every: computing time between two checkpoints
    spares: None if a lost node is replaced within the restart
    """

    nodes: int
    mttf_node: float
    write: float
    restart: float
    every: float
    backup: Backup | None = None
    spares: Spares | None = None

    @property
    def mttf(self) -> float:
        """The mean time to failure of the job, which fails when any node fails."""
        return self.mttf_node / self.nodes

    @property
    def mttf_checkpoint(self) -> float:
        """The mean time to a failure from which only a checkpoint can recover: with a backup, to
        the loss of a node's partner before the state is copied again."""
        if self.backup is None:
            return self.mttf
        return self.mttf / -math.expm1(-sum(self.backup) / self.mttf_node)


# ---- closed forms


def daly(every: float, write: float, restart: float, mttf: float) -> float:
    """Returns the goodput with checkpoints, by Daly's complete model: every / (M e^(R/M) (e^(a/M) -
    1)), where M = mttf, R = restart, a = every + write, written so that nothing overflows."""
    a = (every + write) / mttf
    lost = a * math.exp(-a) / -math.expm1(-a) if a else 1.0
    return every / (every + write) * math.exp(-restart / mttf) * lost


def expected(job: Job) -> float:
    """Returns the goodput of a job in closed form.

    It is exact for checkpoints alone. With a backup, it is the product of the goodputs of both
    levels; with spares, this times the mean share of nodes that work. These products are close to
    the truth if failures are rare.
    """
    goodput = daly(job.every, job.write, job.restart, job.mttf_checkpoint)
    if job.backup is not None:
        goodput *= daly(job.backup.every, 0, job.backup.recover, job.mttf)
    return goodput * max(0.0, 1 - _missing(job) / job.nodes)


def _missing(job: Job) -> float:
    """Returns the mean number of nodes that are lost and not replaced: E max(X - spares, 0), where
    X, the nodes in repair, is a Poisson variable."""
    if job.spares is None or not (mean := job.spares.repair / job.mttf):
        return 0.0
    count = job.spares.nodes
    at = (math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count))
    return max(0.0, mean - count + sum((count - k) * share for k, share in enumerate(at)))


def best_interval(write: float, mttf: float) -> float:
    """Returns the interval between checkpoints, in seconds, with the largest goodput by Daly's
    complete model: M x, where 1 - x = e^(-x - write/M) and M = mttf. It does not depend on the
    restart."""
    low, high = 0.0, 1.0
    for _ in range(80):
        x = (low + high) / 2
        low, high = (x, high) if -math.expm1(-x - write / mttf) > x else (low, x)
    return mttf * high


def young_interval(write: float, mttf: float) -> float:
    """Returns Young's interval between checkpoints, of 1974: sqrt(2 write M), where M = mttf."""
    return math.sqrt(2 * write * mttf)


def daly_interval(write: float, mttf: float) -> float:
    """Returns Daly's interval of 2006, a series that approximates that of the largest goodput."""
    if write >= 2 * mttf:
        return mttf
    x = math.sqrt(write / (2 * mttf))
    return young_interval(write, mttf) * (1 + x / 3 + x * x / 9) - write


# ---- the simulation


class Mark(NamedTuple):
    """A saved state of a simulated job: its position in the sequence of cycles (computing and
    checkpoint), and the work done by then, in seconds."""

    position: float
    done: float


class Run:
    """A simulated run of a job that fails at times.

    clock: seconds since its start
    done: the work that is not lost so far, in seconds of computing on all nodes
    """

    def __init__(self, job: Job) -> None:
        self.job, self.clock, self.done = job, 0.0, 0.0
        self._position = 0.0  # in the sequence of cycles
        self._pause = 0.0  # what is left of a restart
        self._kept = self._copied = Mark(0.0, 0.0)  # the last checkpoint, and the last copies
        self._is_copied = True  # since the last loss
        self._returns = deque[float]()  # when lost nodes are back

    def advance(self, seconds: float) -> None:
        """Lets the job run for `seconds` without a failure; repairs end meanwhile."""
        end = self.clock + seconds
        while self._returns and self._returns[0] <= end:
            self._work(self._returns[0] - self.clock)
            self._returns.popleft()
        self._work(end - self.clock)

    def fail(self, draw: float = 1.0) -> None:
        """Simulates the loss of a node: the job goes back to the last copies in memory, or without
        a Backup to the last checkpoint.

        If no copies were made since the previous loss of a node, and `draw`, from 0 to 1, is less
        than 1 / nodes, the node that is lost now is the one with the copies of the node that was
        lost then: the job goes back to the last checkpoint.
        """
        job = self.job
        if job.spares is not None:
            self._returns.append(self.clock + job.spares.repair)
        if job.backup is None or (not self._is_copied and draw * job.nodes < 1):
            self._copied, self._pause = self._kept, job.restart
        else:
            self._pause = job.backup.recover
        self._position, self.done = self._copied
        self._is_copied = False

    def _work(self, seconds: float) -> None:
        """Lets the job compute with the nodes that work, and saves states."""
        job, pause = self.job, min(self._pause, seconds)
        spares = 0 if job.spares is None else job.spares.nodes
        share = 1 - min(max(len(self._returns) - spares, 0) / job.nodes, 1)
        end = self._position + seconds - pause
        base = self.done - share * self._computed(self._position)
        cycle = job.every + job.write
        if (last := end // cycle * cycle) > self._position:
            self._kept = Mark(last, base + share * self._computed(last))
        if job.backup and (last := end // job.backup.every * job.backup.every) > self._position:
            self._copied, self._is_copied = Mark(last, base + share * self._computed(last)), True
        self.clock, self._pause = self.clock + seconds, self._pause - pause
        self.done, self._position = base + share * self._computed(end), end

    def _computed(self, position: float) -> float:
        """Returns the seconds of computing, without checkpoints, up to a position."""
        cycles, rest = divmod(position, self.job.every + self.job.write)
        return cycles * self.job.every + min(rest, self.job.every)


def simulate(job: Job, failures: int, seed: int = 0) -> tuple[float, float]:
    """Returns the goodput with random failures, and its standard error."""
    run, draws, marks = Run(job), random.Random(seed), [(0.0, 0.0)]
    for _ in range(BATCHES):
        for _ in range(failures // BATCHES):
            run.advance(draws.expovariate(1 / job.mttf))
            run.fail(draws.random())
        marks.append((run.done, run.clock))
    shares = [(b - a) / (d - c) for (a, c), (b, d) in pairwise(marks)]
    return run.done / run.clock, stdev(shares) / math.sqrt(BATCHES)

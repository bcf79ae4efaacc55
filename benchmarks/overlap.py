"""The share of the gradient all-reduces' time that overlaps with the backward pass.

    t_o  a step with overlap     t_n  without overlap     t_c  without all-reduce

    hidden share = (t_n - t_o) / (t_n - t_c)

The three are timed in interleaved rounds of a few steps within one job: t_n - t_c, the time that
could be hidden, is small compared with a step.
"""

import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from lib import timing, workloads
from lib.models import WORKLOADS
from lib.ranks import seconds_per_step
from lib.timing import Row
from lib.workloads import MODELS, Reduction

from nnmpi.arrays import blas
from nnmpi.comm import Comm, world

FINER = 6  # this many times more, shorter rounds than requested, so that many are undisturbed
MODES = ("overlap", "no overlap", "compute alone")


class Overlap(NamedTuple):
    """Seconds per step, (rounds, modes)."""

    times: np.ndarray

    @property
    def seconds(self) -> list[float]:
        """The median of each mode."""
        return [float(t) for t in np.median(self.times, 0)]

    @property
    def to_hide(self) -> float:
        """Seconds that all-reduces add to a step: the median over rounds of t_n - t_c."""
        return float(np.median(self.times[:, 1] - self.times[:, 2]))

    @property
    def share(self) -> float | None:
        """The hidden share; None if the all-reduces take no measurable time."""
        hidden = float(np.median(self.times[:, 1] - self.times[:, 0]))
        return hidden / self.to_hide if self.to_hide > 0 else None

    def confidence_interval(self) -> tuple[float, float] | None:
        """The 90% bootstrap interval of the share; None if a resample has no share."""
        draws, rounds = np.random.default_rng(0), len(self.times)
        shares = [Overlap(self.times[draws.integers(0, rounds, rounds)]).share for _ in range(500)]
        found = [share for share in shares if share is not None]
        if len(found) < len(shares):
            return None
        low, high = np.quantile(found, (0.05, 0.95))
        return float(low), float(high)


def measure(comm: Comm, case: str, algorithm: str, rounds: int, seconds: float) -> Overlap:
    """Time the three modes in weak scaling; every rank gets rank 0's times."""
    per_rank = WORKLOADS[case].shape[0]
    modes = {
        "overlap": Reduction(algorithm),
        "no overlap": Reduction(algorithm, overlap=False),
        "compute alone": Reduction(algorithm, enabled=False),
    }
    made = {name: workloads.nnmpi_steps(case, per_rank, r) for name, r in modes.items()}
    for run in made.values():
        run(2)
    one = seconds_per_step(comm, made["no overlap"], 2)
    steps = max(1, round(seconds / one))
    times, order = np.zeros((rounds, len(made))), np.random.default_rng(0)  # the same on all ranks
    for i in range(rounds):
        for j in order.permutation(len(made)).tolist():
            run = made[MODES[j]]
            times[i, j] = seconds_per_step(comm, run, steps)
    return Overlap(times)


def rows_of(case: str, found: Overlap, algorithm: str, ranks: int, facts: Row) -> list[Row]:
    """One row per mode; the share is in the row with overlap."""
    batch = WORKLOADS[case].shape[0] * ranks
    rows: list[Row] = [
        {
            "benchmark": "scaling",
            "case": case,
            "model": MODELS[case],
            "scaling": "hidden",
            "subject": f"nnmpi, {mode}",
            "algorithm": algorithm,
            "ranks": ranks,
            "batch_size": batch,
            "seconds": seconds,
            "samples_per_second": batch / seconds,
            "rounds": len(found.times),
            **facts,
        }
        for mode, seconds in zip(MODES, found.seconds, strict=True)
    ]
    rows[0] |= {"hidden_share": found.share, "seconds_to_hide": found.to_hide}
    if interval := found.confidence_interval():
        rows[0] |= {"hidden_share_low": interval[0], "hidden_share_high": interval[1]}
    return rows


def line(case: str, found: Overlap) -> str:
    """The result of a case, in one line."""
    times = "".join(f"{t * 1e3:>10.2f}" for t in (*found.seconds, found.to_hide))
    if found.share is None:
        return f"{case:<6}{times}{'-':>10}"
    low, high = found.confidence_interval() or (-np.inf, np.inf)
    return f"{case:<6}{times}{found.share:>10.0%}  ({low:.0%} to {high:.0%})"


def main(
    cases: Sequence[str], algorithm: str, rounds: int, seconds: float, path: str | None
) -> None:
    """Measure on every rank of the job; rank 0 prints and writes."""
    blas.tune()
    comm = world()
    if comm.size == 1:
        raise SystemExit(
            "scaling.py: --hidden needs at least 2 ranks, got 1: "
            "mpirun -n 2 python benchmarks/scaling.py --hidden"
        )
    report = print if comm.rank == 0 else lambda *_: None
    facts, rows = timing.machine(), []
    if comm.rank == 0:
        timing.warn_if_busy(facts)
    report(", ".join(f"{key} {value}" for key, value in facts.items()))
    report(f"\nms per step on {comm.size} ranks, {algorithm}")
    report(f"{'':<6}{'overlap':>10}{'without':>10}{'alone':>10}{'to hide':>10}{'hidden':>10}")
    for case in cases:
        found = measure(comm, case, algorithm, FINER * rounds, seconds / FINER)
        report(line(case, found))
        rows += rows_of(case, found, algorithm, comm.size, facts)
    if comm.rank == 0:
        timing.finish(path, rows)
    sys.stdout.flush()

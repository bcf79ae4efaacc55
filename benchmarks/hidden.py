"""How much of the time that the sums of gradients take is hidden behind the backward pass.

    t_o  a step with overlap     t_n  without     t_c  the same step, nothing summed

    hidden share = (t_n - t_o) / (t_n - t_c)

All three take turns within one job, a few steps at a time, so that many rounds go by undisturbed:
t_n - t_c, the time that there is to hide, is small beside a step.
"""

import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import timing
import workloads
from timing import Row
from workloads import MODELS, WORKLOADS, Reduction, Steps

from nnmpi.comm import Comm, world

FINER = 6  # times as many rounds as asked for, each so much shorter
MODES = ("overlap", "no overlap", "compute alone")


class Hidden(NamedTuple):
    """Seconds of a step, (rounds, modes)."""

    times: np.ndarray

    @property
    def seconds(self) -> list[float]:
        """The median of each mode."""
        return [float(t) for t in np.median(self.times, 0)]

    @property
    def to_hide(self) -> float:
        """Seconds that the sums add to a step: the median over rounds of t_n - t_c."""
        return float(np.median(self.times[:, 1] - self.times[:, 2]))

    @property
    def share(self) -> float | None:
        """None where the sums take no time that could be told from the noise."""
        hidden = float(np.median(self.times[:, 1] - self.times[:, 0]))
        return hidden / self.to_hide if self.to_hide > 0 else None

    def between(self) -> tuple[float, float] | None:
        """Where the share lies nine times in ten, going by rounds drawn again from those there are.

        None where some of these draws find nothing to hide.
        """
        draws, rounds = np.random.default_rng(0), len(self.times)
        again = [Hidden(self.times[draws.integers(0, rounds, rounds)]).share for _ in range(500)]
        found = [share for share in again if share is not None]
        if len(found) < len(again):
            return None
        low, high = np.quantile(found, (0.05, 0.95))
        return float(low), float(high)


def measure(comm: Comm, case: str, algorithm: str, rounds: int, seconds: float) -> Hidden:
    """The three modes in turns, weak scaling; every rank gets rank 0's times."""
    each = WORKLOADS[case].shape[0]
    modes = {
        "overlap": Reduction(algorithm),
        "no overlap": Reduction(algorithm, overlap=False),
        "compute alone": Reduction(algorithm, sums=False),
    }
    made = {name: workloads.nnmpi_steps(case, each, r) for name, r in modes.items()}
    for run in made.values():
        run(2)
    one = _timed(comm, made["no overlap"], 2)
    steps = max(1, round(seconds / one))
    times, order = np.zeros((rounds, len(made))), np.random.default_rng(0)  # the same on all ranks
    for i in range(rounds):
        for j in order.permutation(len(made)).tolist():
            run = made[MODES[j]]
            run(1)  # has its memory in the cache again, after the others
            times[i, j] = _timed(comm, run, steps)
    return Hidden(times)


def _timed(comm: Comm, run: Steps, steps: int) -> float:
    """Seconds a step between two barriers, as rank 0 saw it."""
    comm.barrier()
    start = time.perf_counter()
    run(steps)
    comm.barrier()
    taken = np.array([(time.perf_counter() - start) / steps])
    comm.broadcast(taken)
    return float(taken[0])


def rows_of(case: str, found: Hidden, algorithm: str, ranks: int, facts: Row) -> list[Row]:
    """One row for each mode; that with overlap holds the share."""
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
    if sure := found.between():
        rows[0] |= {"hidden_share_low": sure[0], "hidden_share_high": sure[1]}
    return rows


def line(case: str, found: Hidden) -> str:
    """What came out, in one line."""
    times = "".join(f"{t * 1e3:>10.2f}" for t in (*found.seconds, found.to_hide))
    if found.share is None:
        return f"{case:<6}{times}{'-':>10}"
    low, high = found.between() or (-np.inf, np.inf)
    return f"{case:<6}{times}{found.share:>10.0%}  ({low:.0%} to {high:.0%})"


def main(
    cases: Sequence[str], algorithm: str, rounds: int, seconds: float, path: str | None
) -> None:
    """What every rank of the job does; rank 0 prints and writes."""
    comm = world()
    if comm.size == 1:
        raise SystemExit(
            "scaling.py: one rank has nothing to sum: "
            "mpirun -n 2 python benchmarks/scaling.py --hidden"
        )
    say = print if comm.rank == 0 else lambda *words: None
    facts, rows = timing.machine(), []
    say(", ".join(f"{key} {value}" for key, value in facts.items()))
    say(f"\nms of a step on {comm.size} ranks, {algorithm}")
    say(f"{'':<6}{'overlap':>10}{'without':>10}{'alone':>10}{'to hide':>10}{'hidden':>10}")
    for case in cases:
        found = measure(comm, case, algorithm, FINER * rounds, seconds / FINER)
        say(line(case, found))
        rows += rows_of(case, found, algorithm, comm.size, facts)
    if comm.rank == 0:
        timing.write_rows(path, rows)
    sys.stdout.flush()

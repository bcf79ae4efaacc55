"""What --backup costs in a step: mpirun -n 2 python benchmarks/backup.py [--json FILE]

Ranks train W1 and W2 with --zero 1: each alone has the optimizer state of its part, and sends it
to the next one with the values. Steps without backups, with one after each step and with one after
each tenth are timed in interleaved rounds of one job; a ratio is to the steps without, round by
round.

By default backups are as far apart as Young's formula says for a day between failures (--mtbf 24h):
more steps than a round has. So that row is what one of them adds to a step, over the steps between
two:

    default   1 + (t_1 - t_0) / (N t_0),   N = sqrt(2 (t_1 - t_0) mtbf) / t_0
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
from lib import timing
from lib.ranks import seconds_per_step
from lib.timing import Row
from lib.workloads import TRAINED, endless

from nnmpi import Config, Trainer
from nnmpi.addons.recovery.parallel.backup import backups
from nnmpi.addons.recovery.parallel.backups_on_paper import backup, steps_between
from nnmpi.arrays import blas
from nnmpi.comm import Comm, world
from nnmpi.options.value_forms import duration

EVERY = (0, 1, 10)
"""Steps from one backup to the next; 0: there are none."""


class Training:
    """A model in training without end, with backups of any of these distances."""

    def __init__(self, comm: Comm, case: str) -> None:
        how: dict[str, Any] = {"zero": 1, "allreduce": "ring", "epochs": 1}
        self.trainer = t = Trainer(Config(**TRAINED[case], **how), comm=comm)
        self.made, self._steps, a = 0, endless(t), t.arrangement
        each = ((n, replace(a, config=replace(a.config, backup=n))) for n in EVERY if n)
        made = {n: backups(of, t.session.state(), comm) for n, of in each}
        self._backups = {n: one for n, one in made.items() if one is not None}

    def run(self, steps: int, every: int) -> None:
        """Makes so many steps."""
        for _ in range(steps):
            next(self._steps)
            self.made += 1
            if every:
                self._backups[every].after_step(self.made, None, self.trainer.session.state())

    def close(self) -> None:
        """Ends the epoch, in which ranks may have messages under way."""
        self._steps.close()
        for one in self._backups.values():
            one.close()
        self.trainer.close()


def measured(comm: Comm, training: Training, rounds: int, seconds: float) -> np.ndarray:
    """Seconds of a step, (rounds, EVERY)."""
    for every in EVERY:
        training.run(3, every)
    one = seconds_per_step(comm, lambda n: training.run(n, 0), 3)
    steps = max(10, round(seconds / one / 10) * 10)  # as many backups in each round
    times, order = np.zeros((rounds, len(EVERY))), np.random.default_rng(0)
    for i in range(rounds):
        for j in order.permutation(len(EVERY)).tolist():
            times[i, j] = seconds_per_step(comm, lambda n, e=EVERY[j]: training.run(n, e), steps)
    return times


def rows_of(comm: Comm, case: str, rounds: int, seconds: float, facts: Row) -> list[Row]:
    """A row for each distance of backups, and one for the default."""
    training = Training(comm, case)
    times, a = measured(comm, training, rounds, seconds), training.trainer.arrangement
    sent, held = backup(a, comm.rank)
    training.close()
    plain, adds = times[:, 0], max(median(times[:, 1] - times[:, 0]), 0.0)
    step, mtbf = median(plain), duration(a.config.mtbf)
    apart = steps_between(adds, step, mtbf)
    ratios = {n: timing.ratio(times[:, j], plain) for j, n in enumerate(EVERY) if n}
    every: list[Row] = [
        {
            "subject": f"every {n}",
            "steps_apart": n,
            "ratio": m,
            "ratio_low": low,
            "ratio_high": high,
        }
        for n, (low, m, high) in ratios.items()
    ]
    every += [{"subject": "default", "steps_apart": apart, "ratio": 1 + adds / apart / step}]
    same = {
        "benchmark": "backup",
        "case": case,
        "ranks": comm.size,
        "seconds_without": step,
        "sent_bytes": sent.bytes,
        "held_bytes": held,
        "rounds": rounds,
    }
    return [{**same, **row, **facts} for row in every]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per measurement to this file")
    p.add_argument("--cases", nargs="+", choices=[*TRAINED], default=[*TRAINED])
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--seconds", type=float, default=1.0, help="of each case and round")
    return p.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures on every rank of the job; rank 0 prints and writes."""
    a, comm = parse(arguments), world()
    if comm.size == 1:
        raise SystemExit("backup.py: one rank has no neighbour: mpirun -n 2 python backup.py")
    blas.tune()
    facts = timing.machine()
    if comm.rank == 0:
        timing.warn_if_busy(facts)
    rows = [row for case in a.cases for row in rows_of(comm, case, a.rounds, a.seconds, facts)]
    if comm.rank == 0:
        for row in rows:
            print(
                f"{row['case']:<4}{row['subject']:<10}{row['ratio']:.4f} of a step without "
                f"({row['seconds_without'] * 1e3:.2f} ms); {row['sent_bytes'] / 1e6:.1f} MB, "
                f"{row['steps_apart']:,} steps apart"
            )
        timing.finish(a.json, rows)
    sys.stdout.flush()


if __name__ == "__main__":
    main()

"""What a step takes in less memory than it needs: python benchmarks/beyond_memory.py [--json FILE]

The same model is trained with all the memory that a step needs by formula, with half of it and with
a quarter, or with the least that works if that is more, in interleaved rounds of one process; a
ratio is to the steps with all of it, round by round. Beside it are the seconds of processors, the
speed of the disk, and what the clocks have predicted. How far the resident memory grows from the
first step on is measured in a process of its own; all have the same digest of parameters.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from lib import timing
from lib.timing import Row
from lib.workloads import endless

from nnmpi import Config, Trainer
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.addons.swapping.placement import placements_of
from nnmpi.arrays import blas

CASES: dict[str, dict[str, Any]] = {
    "gpt": {"model": "gpt:4x4x128", "data": "text", "batch_size": 32},
    "gpt large": {"model": "gpt:4x4x128", "data": "text", "batch_size": 256},
    "mnist-cnn": {
        "model": "mnist-cnn",
        "data": "synthetic:1x28x28:10:8192",
        "batch_size": 4096,
    },
    "cifar-cnn": {
        "model": "cifar-cnn",
        "data": "synthetic:3x32x32:10:2048",
        "batch_size": 1024,
    },
}
SHARES = (1.0, 0.5, 0.25)


def trainer_of(case: str, limit: float | None = None) -> Trainer:
    """The model in training, in so much memory."""
    how = {} if limit is None else {"memory": f"{limit / 1e6:.2f}MB"}
    return Trainer(Config(**CASES[case], **how, epochs=1, lr_schedule="constant"))


def needed(trainer: Trainer) -> int:
    """The bytes of a step by formula."""
    a, batch = trainer.arrangement, trainer.config.batch_size
    return memory(a, 0, batch).total + activations(a, 0, batch)


def within(case: str, limit: float) -> tuple[float, Trainer]:
    """A Trainer in so much memory, or in the least that works."""
    try:
        return limit, trainer_of(case, limit)
    except ValueError as error:
        least = float(str(error).partition("use --memory ")[2].partition("MB")[0]) * 1e6
        return least, trainer_of(case, least)


def status(name: str) -> int:
    """An entry of this process in bytes."""
    line = next(x for x in Path("/proc/self/status").read_text().splitlines() if name in x)
    return 1024 * int(line.split()[1])


def grown(case: str, limit: float | None, steps: int) -> dict[str, Any]:
    """By how much this process is larger at its peak than before its steps; the digest behind."""
    trainer = trainer_of(case, limit)
    a, batch = trainer.arrangement, trainer.config.batch_size
    plan = placements_of(a)
    on_disk = plan.state if plan else 0
    before = status("VmRSS") - memory(a, 0, batch).total + on_disk
    Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
    for _ in islice(endless(trainer), steps):
        pass
    most, digest = status("VmHWM"), trainer.strategy.full_state.sha256()
    trainer.close()
    return {"grown_bytes": most - before, "digest": digest}


def measured(trainers: Sequence[Trainer], rounds: int, steps: int) -> np.ndarray:
    """Seconds of a step, and of processors in it, (rounds, trainers, 2)."""
    made = [endless(t) for t in trainers]
    times, order = np.zeros((rounds, len(made), 2)), np.random.default_rng(0)
    for one in made:
        next(one)
    for i in range(rounds):
        for j in order.permutation(len(made)).tolist():
            cpu, wall = timing.measure(lambda j=j: next(made[j]), steps)
            times[i, j] = wall, cpu
    return times


def rows_of(case: str, rounds: int, steps: int, facts: Row) -> Iterator[Row]:
    """A row for each share of the memory."""
    whole = trainer_of(case)
    need = needed(whole)
    found = [(float(need), whole), *(within(case, need * share) for share in SHARES[1:])]
    times = measured([t for _, t in found], rounds, steps)
    for j, (limit, t) in enumerate(found):
        low, ratio, high = timing.ratio(times[:, j, 0], times[:, 0, 0])
        row = {
            "benchmark": "beyond_memory",
            "case": case,
            "ranks": 1,
            "subject": f"{limit / need:.2f} of the memory",
            "needed_bytes": need,
            "memory_bytes": round(limit),
            "seconds": median(times[:, j, 0]),
            "cpu_ratio": timing.ratio(times[:, j, 1], times[:, 0, 1])[1],
            "ratio": ratio,
            "ratio_low": low,
            "ratio_high": high,
            **facts,
        }
        if (plan := placements_of(t.arrangement)) is not None:
            kinds = [how.value for how in plan.choice]
            row["predicted_ratio"] = plan.seconds / plan.seconds_kept
            row["disk_write"], row["disk_read"] = plan.disk.write, plan.disk.read
            row |= {how: kinds.count(how) for how in sorted({*kinds})}
        t.close()
        yield row | peak(case, limit if j else None)


def peak(case: str, limit: float | None) -> dict[str, Any]:
    """`grown`, in a process of its own."""
    command = [sys.executable, __file__, "--grown", case, str(limit or 0)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per measurement to this file")
    p.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--steps", type=int, default=2, help="of each round")
    p.add_argument("--grown", nargs=2, help=argparse.SUPPRESS)
    return p.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures, prints and writes."""
    a = parse(arguments)
    blas.tune()
    blas.default_threads(1)
    if a.grown:
        case, limit = a.grown
        print(json.dumps(grown(case, float(limit) or None, 3)))
        return
    facts, rows = timing.machine(), []
    timing.warn_if_busy(facts)
    for case in a.cases:
        for row in rows_of(case, a.rounds, a.steps, facts):
            rows.append(row)
            speeds = [f"{row.get(name, 0) / 1e9:.2f}" for name in ("disk_write", "disk_read")]
            print(
                f"{case:<10} {row['subject']:<19} {row['memory_bytes'] / 1e6:8.1f} MB, grown by "
                f"{row['grown_bytes'] / 1e6:8.1f} MB  {row['seconds'] * 1e3:8.1f} ms  "
                f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f}), "
                f"of processors {row['cpu_ratio']:.2f}, "
                f"predicted {row.get('predicted_ratio', 1):.2f}, disk "
                f"{' and '.join(speeds)} GB/s, {row['digest'][:8]}",
                flush=True,
            )
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()

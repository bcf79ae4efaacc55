"""How well steps are predicted: mpirun -n 2 python benchmarks/plan.py [--json FILE] [--cases ...]

In one job, so that both see the same machine: what `python -m nnmpi.measure` measures of the ranks
and of a model, then steps of each layout, in rounds. A prediction knows no step of two ranks. Times
are low quantiles over rounds. `noise` is by how much the same layout differs, made a second time.
"""

import argparse
import statistics
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from lib import timing
from lib.timing import Row

from nnmpi import Config, Trainer, blas
from nnmpi.comm import Comm, world
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.planning.exchange_time import ExchangeTimes
from nnmpi.parallel.planning.step_time import CostModel, step_time
from nnmpi.parallel.planning.unit_times import ModelTimes
from nnmpi.run.measuring import measure

CASES: dict[str, dict[str, Any]] = {
    "mnist-cnn": {"model": "mnist-cnn", "data": "synthetic:1x28x28:10:4096", "batch_size": 128},
    "mlp": {
        "model": "mlp:784-1024-1024-10",
        "data": "synthetic:784:10:4096",
        "batch_size": 256,
    },
    "gpt:4x4x128": {"model": "gpt:4x4x128", "data": "text", "context": 128, "batch_size": 16},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "dp ring": {"allreduce": "ring"},
    "dp shared": {"allreduce": "shared"},
    "dp shared m4": {"allreduce": "shared", "micro_batches": 4},
    "zero 1": {"zero": 1},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
    "pp 1f1b m4": {"pp": 2, "micro_batches": 4},
    "pp gpipe m4": {"pp": 2, "micro_batches": 4, "schedule": "gpipe"},
    "pp 1f1b m4 recompute": {"pp": 2, "micro_batches": 4, "recompute": True},
    "tp": {"tp": 2},
}
QUANTILE = 0.1
WARM = 2


def times_of(comm: Comm, trainer: Trainer, steps: int) -> list[float]:
    """Seconds of steps, of the slowest rank."""
    trainer.model.train()
    found = list[float]()
    with closing(trainer.strategy.steps(trainer.train, trainer.state)) as made:
        for _ in islice(made, WARM):
            pass
        comm.barrier()
        began = timing.time.perf_counter()
        for _ in islice(made, steps):
            now = timing.time.perf_counter()
            found.append(now - began)
            began = now
    return np.max(gather_objects(comm, found), axis=0).tolist()


def rows_of(comm: Comm, case: str, a: argparse.Namespace) -> list[Row]:
    """A row a layout: predicted and measured seconds of a step."""
    config = Config(epochs=1, check_copies=0, lr_schedule="constant", lr=1e-4, **CASES[case])
    machine = measure(config, comm)
    with ExitStack() as stack:
        trainers = {
            (name, k): stack.enter_context(
                closing(Trainer(replace(config, **LAYOUTS[name]), comm=comm))
            )
            for name in LAYOUTS
            for k in range(2)
        }
        times: dict[tuple[str, int], list[float]] = {key: [] for key in trainers}
        for _ in range(a.rounds):
            for key, trainer in trainers.items():
                times[key] += times_of(comm, trainer, a.steps)
        low = {key: float(np.quantile(found, QUANTILE)) for key, found in times.items()}
        rows = []
        for name in LAYOUTS:
            arrangement = trainers[name, 0].arrangement
            costs = CostModel(
                machine,
                ModelTimes(arrangement.graph, machine, config.dtype),
                ExchangeTimes(machine, arrangement.cluster),
            )
            predicted = step_time(arrangement, costs)
            rows.append(
                {
                    "benchmark": "plan",
                    "case": f"{case} {name}",
                    "ranks": comm.size,
                    "seconds": low[name, 0],
                    "predicted_seconds": predicted.seconds,
                    "error": predicted.seconds / low[name, 0] - 1,
                    "noise": low[name, 1] / low[name, 0] - 1,
                    **predicted._asdict(),
                }
            )
    return rows


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per measurement to this file")
    p.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    p.add_argument("--rounds", type=int, default=6)
    p.add_argument("--steps", type=int, default=8, help="of a layout in a round")
    return p.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark on the ranks of mpirun."""
    a, comm = parse(arguments), world()
    facts = timing.machine()
    blas.tune()
    blas.set_threads(1)
    rows = [{**row, **facts} for case in a.cases for row in rows_of(comm, case, a)]
    if comm.rank:
        return
    print(f"{'layout':32s} measured  predicted   error   noise   compute tensor bubble sums update")
    for row in rows:
        terms = (row[name] for name in ("compute", "tensor", "bubble", "sums", "update", "other"))
        print(
            f"{row['case']:32s} {row['seconds'] * 1e3:8.2f}  {row['predicted_seconds'] * 1e3:8.2f} "
            f"{row['error']:8.1%} {row['noise']:7.1%}   "
            + " ".join(f"{term * 1e3:6.2f}" for term in terms)
        )
    errors = [abs(row["error"]) for row in rows]
    noise = [abs(row["noise"]) for row in rows]
    print(
        f"{len(rows)} layouts: median error {statistics.median(errors):.1%}, worst "
        f"{max(errors):.1%}; the same layout twice: median {statistics.median(noise):.1%}, worst "
        f"{max(noise):.1%}"
    )
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()

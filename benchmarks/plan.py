"""How well steps are predicted: mpirun -n 2 python benchmarks/plan.py [--json FILE] [--plot FILE]

In one job, so that both see the same machine: what `python -m nnmpi.measure` measures of the ranks
and of a model, and steps of each layout, in rounds. A prediction knows no step of these layouts.
Processors change their speed over minutes, by 25% on a shared host. So the machine is measured
several times, between the rounds, and the least prediction counts, as the fastest steps do.

    seconds   of a step, a low quantile over rounds; `noise` is by how much the same layout differs,
              made a second time; `drift` by how much the largest prediction differs from the least
    memory    of the rank that has most: traced from before its model is made, without the samples,
              and shared windows
    bytes     that a rank sends in a step on average, by the ledgers of its communicators
    chosen    the layout that --plan takes by the same figures, measured among the others

On several nodes, as those of scripts/cluster, it measures the links between them, too:

    scripts/cluster up --hosts 4 --rate 1gbit
    scripts/cluster run -n 4 -- python benchmarks/plan.py --setting "4 nodes, 1 Gbit/s"
"""

import argparse
import gc
import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lib import plan_plot, ranks, timing
from lib.timing import Row

from nnmpi import Config, Trainer
from nnmpi.addons.planning.exchange_time import ExchangeTimes
from nnmpi.addons.planning.machine import Machine
from nnmpi.addons.planning.paper.activations import needed, pass_bytes
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.addons.planning.rank_costs import CostModel
from nnmpi.addons.planning.run.deadline import Deadline
from nnmpi.addons.planning.run.measuring import measure
from nnmpi.addons.planning.step_time import StepTime, step_time
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.arrays import blas
from nnmpi.comm import Comm, world
from nnmpi.data.inputs import arrays
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.run.setup.setup import set_up

CASES: dict[str, dict[str, Any]] = {
    "mnist-cnn": {"model": "mnist-cnn", "data": "synthetic:1x28x28:10:2048", "batch_size": 128},
    "mlp": {"model": "mlp:784-1024-1024-10", "data": "synthetic:784:10:4096", "batch_size": 256},
    "gpt:4x4x128": {"model": "gpt:4x4x128", "data": "text", "context": 128, "batch_size": 16},
}
ONE: dict[str, dict[str, Any]] = {
    "m1": {},
    "m2": {"micro_batches": 2},
    "m8": {"micro_batches": 8},
}
TWO: dict[str, dict[str, Any]] = {
    "dp ring": {"allreduce": "ring"},
    "dp shared": {"allreduce": "shared"},
    "dp shared m4": {"allreduce": "shared", "micro_batches": 4},
    "zero 1": {"zero": 1},
    "zero 2": {"zero": 2},
    "zero 3": {"zero": 3},
    "pp 1f1b m4": {"pp": 2, "micro_batches": 4},
    "pp gpipe m4": {"pp": 2, "micro_batches": 4, "schedule": "gpipe"},
    "pp zb-h1 m8": {"pp": 2, "micro_batches": 8, "schedule": "zb-h1"},
    "pp 1f1b m4 recompute": {"pp": 2, "micro_batches": 4, "recompute": True},
    "tp": {"tp": 2},
}
FOUR: dict[str, dict[str, Any]] = {
    "dp ring": {"allreduce": "ring"},
    "dp halving": {"allreduce": "halving"},
    "dp doubling": {"allreduce": "doubling"},
    "dp p2p": {"allreduce": "p2p"},
    "dp ring m4": {"allreduce": "ring", "micro_batches": 4},
    "zero 1": {"zero": 1},
    "zero 3": {"zero": 3},
    "pp 4 m8": {"pp": 4, "micro_batches": 8},
    "dp 2 pp 2 m4": {"pp": 2, "micro_batches": 4},
    "dp 2 tp 2": {"tp": 2},
    "tp 4": {"tp": 4},
}
LAYOUTS = {1: ONE, 2: TWO, 4: FOUR}
CHOSEN = "chosen"
QUANTILE = 0.1
WARM = 2
MEASURED = 3  # times


class Setting(NamedTuple):
    """A model on the ranks of this job, and what was measured of both, each time."""

    case: str
    config: Config
    machines: list[Machine]
    layouts: Mapping[str, Config]

    def trainer(self, comm: Comm, name: str) -> Trainer:
        return Trainer(self.layouts[name], comm=comm)


def measured(comm: Comm, config: Config) -> Machine:
    """The machine and the model's units, as measured now."""
    return gather_objects(comm, measure(set_up(config, comm), comm, Deadline()))[0]


def setting_of(comm: Comm, case: str, folder: Path) -> Setting:
    """Measures the machine; the plan reads it from a file."""
    config = Config(epochs=1, check_copies=0, lr_schedule="constant", lr=1e-4, **CASES[case])
    machine = measured(comm, config)
    file = gather_objects(comm, folder)[0] / f"{case}.json"  # all see it
    if comm.rank == 0:
        file.write_text(machine.as_json(), encoding="utf-8")
    comm.barrier()
    layouts = {name: replace(config, **own) for name, own in LAYOUTS[comm.size].items()}
    return Setting(case, config, [machine], {**layouts, CHOSEN: replace(config, plan=str(file))})


def times_of(comm: Comm, trainer: Trainer, steps: int) -> list[float]:
    """Seconds of steps, of the slowest rank."""
    trainer.model.train()
    found = list[float]()
    with closing(trainer.strategy.steps(trainer.train, trainer.state)) as made:
        for _ in islice(made, WARM):
            pass
        comm.barrier()
        began = time.perf_counter()
        for _ in islice(made, steps):
            now = time.perf_counter()
            found.append(now - began)
            began = now
    return np.max(gather_objects(comm, found), axis=0).tolist()


def seconds_of(comm: Comm, s: Setting, a: argparse.Namespace) -> dict[tuple[str, int], float]:
    """Seconds of a step of each layout, which is made twice; measures the machine again, too."""
    with ExitStack() as stack:
        trainers = {
            (name, k): stack.enter_context(closing(s.trainer(comm, name)))
            for k in range(2)
            for name in s.layouts
        }
        times: dict[tuple[str, int], list[float]] = {key: [] for key in trainers}
        for k in range(a.rounds):
            if len(s.machines) * a.rounds <= k * MEASURED:
                s.machines.append(measured(comm, s.config))
            for key, trainer in trainers.items():
                times[key] += times_of(comm, trainer, a.steps)
    return {key: float(np.quantile(found, QUANTILE)) for key, found in times.items()}


def predicted(machine: Machine, trainer: Trainer) -> StepTime:
    """The seconds of a step of a layout."""
    a = trainer.arrangement
    times = ModelTimes(a.graph, machine, trainer.config.dtype)
    return step_time(a, CostModel(machine, times, ExchangeTimes(machine, a.cluster)))


def of_data(trainer: Trainer) -> int:
    """Bytes of the samples that a rank has, as they are and standardised."""
    loaders = trainer.train, trainer.test
    given = [array for one in loaders for array in (*arrays(one.split.x), one.split.y)]
    ready = [
        array
        for one in loaders
        if one.standardised is not None
        for array in arrays(one.standardised)
    ]
    return sum({id(array): array.nbytes for array in (*given, *ready)}.values())


def python_objects(a: Arrangement, rank: int) -> int:
    """An estimate of the bytes of Python objects of a run: layers, parameters, graph, tape, and
    recorded passes. They matter beside the arrays of a small model."""
    sizes = micro_batches(a, rank, a.config.batch_size)
    lists = min(len(sizes), 2)  # one adds to gradients
    calls = sum(pass_bytes(a, rank, s, sizes[0]).calls for s in a.model_on(rank).stages)
    return 120_000 + 10_000 * len(a.graph.nodes) + 2_300 * lists * calls


def resources(comm: Comm, s: Setting, name: str) -> Row:
    """Memory of the rank that has most, and bytes that ranks send on average, beside what the
    arrangement says; and which layout was chosen."""
    with ranks.windows() as sizes:
        gc.collect()
        tracemalloc.start()
        with closing(s.trainer(comm, name)) as trainer:
            steps = trainer.strategy.steps(trainer.train, trainer.state)
            for _ in islice(steps, WARM):
                pass
            gc.collect()
            tracemalloc.reset_peak()
            for _ in islice(steps, 1):
                pass
            peak = tracemalloc.get_traced_memory()[1] + sum(sizes) - of_data(trainer)
            tracemalloc.stop()
            counted = ranks.sent_by(lambda n: [*islice(steps, n)])
            steps.close()
            a, batch = trainer.arrangement, s.config.batch_size
            held = needed(a, comm.rank, batch) + python_objects(a, comm.rank)
            said = sum(one.bytes for one in traffic(a, comm.rank, batch).values())
            options = {n: getattr(trainer.config, n) for n in ("dp", "pp", "tp", "zero")}
    most = max(gather_objects(comm, (peak, held)))
    mean = sum(gather_objects(comm, said)) / comm.size
    return {
        "memory": most[0],
        "predicted_memory": most[1],
        "bytes": counted.bytes,
        "predicted_bytes": mean,
        "layout": " ".join(f"{n} {v}" for n, v in options.items() if v not in (None, 0, 1)),
    }


def rows_of(comm: Comm, s: Setting, a: argparse.Namespace) -> list[Row]:
    """A row a layout."""
    low, rows = seconds_of(comm, s, a), list[Row]()
    best = min(seconds for (name, k), seconds in low.items() if not k)
    for name in s.layouts:
        with closing(s.trainer(comm, name)) as trainer:
            found = [predicted(machine, trainer) for machine in s.machines]
        least = min(found, key=lambda one: one.seconds)
        seconds = low[name, 0]
        rows.append({
            "benchmark": "plan",
            "setting": a.setting or f"{comm.size} rank{'s' * (comm.size > 1)}",
            "case": f"{s.case} {name}",
            "ranks": comm.size,
            "seconds": seconds,
            "predicted_seconds": least.seconds,
            "error": least.seconds / seconds - 1,
            "drift": max(one.seconds for one in found) / least.seconds - 1,
            "noise": low[name, 1] / seconds - 1,
            "against_best": seconds / best,
            **least._asdict(),
            **resources(comm, s, name),
        })  # fmt: skip
    return rows


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The flags."""
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--json", help="write one row per measurement to this file")
    p.add_argument("--plot", help="draw predicted against measured seconds")
    p.add_argument("--from", dest="rows", nargs="+", default=[], help="draw these files alone")
    p.add_argument("--setting", help="what the rows say of these ranks, and links between them")
    p.add_argument("--cases", nargs="+", choices=[*CASES], default=[*CASES])
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--steps", type=int, default=8, help="of a layout in a round")
    return p.parse_args(arguments)


def table(rows: Sequence[Row]) -> str:
    """What was predicted beside what was measured."""
    terms = StepTime._fields
    head = f"{'layout':34s} measured  predicted   error   noise  memory   bytes   "
    lines = [head + " ".join(f"{term:>7s}" for term in terms)]
    for row in rows:
        of_memory = row["predicted_memory"] / row["memory"] - 1
        is_exact = "exact" if row["bytes"] == row["predicted_bytes"] else "OTHER"
        lines.append(
            f"{row['case']:34s} {row['seconds'] * 1e3:8.2f}  {row['predicted_seconds'] * 1e3:8.2f} "
            f"{row['error']:8.1%} {row['noise']:7.1%} {of_memory:7.1%}  {is_exact:6s}  "
            + " ".join(f"{row[term] * 1e3:7.2f}" for term in terms)
        )
    return "\n".join([*lines, *summary(rows)])


def summary(rows: Sequence[Row]) -> list[str]:
    """Errors over all layouts, and how good the chosen ones are."""
    of = {
        "seconds": [abs(row["error"]) for row in rows],
        "the same prediction, of other minutes": [row["drift"] for row in rows],
        "the same layout twice": [abs(row["noise"]) for row in rows],
        "memory": [abs(row["predicted_memory"] / row["memory"] - 1) for row in rows],
    }
    lines = [
        f"{what}: median {statistics.median(found):.1%}, worst {max(found):.1%}"
        for what, found in of.items()
    ]
    exact = sum(row["bytes"] == row["predicted_bytes"] for row in rows)
    lines.append(f"bytes: exact for {exact} of {len(rows)} layouts")
    for row in rows:
        case, *name = row["case"].split()
        if name == [CHOSEN]:
            dp = [one["seconds"] for one in rows if one["case"].startswith(f"{case} dp ")]
            over = f", {min(dp) / row['seconds']:.2f} times as fast as the best of dp" if dp else ""
            lines.append(
                f"{case}: {row['layout'] or 'one rank'} was chosen, {row['against_best'] - 1:.1%} "
                f"slower than the best measured one{over}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark on the ranks of mpirun."""
    a = parse(arguments)
    if a.rows:
        plan_plot.draw([row for file in a.rows for row in plan_plot.read(file)], a.plot)
        return
    comm, facts = world(), timing.machine()
    blas.tune()
    blas.set_threads(1)
    rows = list[Row]()
    with tempfile.TemporaryDirectory() as folder:
        for case in a.cases:
            found = rows_of(comm, setting_of(comm, case, Path(folder)), a)
            rows += [{**row, **facts} for row in found]
    if comm.rank:
        return
    print(table(rows))
    timing.finish(a.json, rows)
    if a.plot:
        plan_plot.draw(rows, a.plot)


if __name__ == "__main__":
    main()

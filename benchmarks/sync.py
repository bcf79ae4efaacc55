"""The cost of synchronisation: mpirun --oversubscribe -n 5 python benchmarks/sync.py

All ranks but the last are workers that train on the digits, and the last one is a parameter
server: BSP, SSP with several bounds and ASP, compared with BSP by all-reduce, without a server.
Cases of stragglers:

    none      all workers are equally fast
    random    each worker is 5 times slower at a tenth of its steps (--jitter 0.1:5)
    one slow  the first worker is always 3 times slower (--slow-rank 0:3)

In addition, every worker sleeps until a step has taken --base times its computing time. Several
workers can therefore share a core, and the comparison is about waiting. Some noise remains: workers
in lockstep compute at the same moment, and the slowest is slow by chance too. The case "none" shows
how much that is.

The network has no BatchNorm unless --model names another one: BatchNorm synchronises the ranks
within each step of BSP.

Rates are samples of all workers per second of wall-clock time, without the first quarter of the
steps and without evaluation. A run is one epoch over repeated digits, since all workers wait at its
end. Runs are interleaved; a ratio is the median over repeats, each with its own seed. "x bsp" is
relative to BSP in the same case, "x none" to the same mode without stragglers, and "theory" is the
value of a model in which steps take exactly what the case says and messages take no time.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lib import timing
from lib.flags import Parser
from lib.sync import plot
from lib.sync.model import CASES, MODES, expected
from lib.sync.run import COLD, Entry, RunResult, run
from lib.timing import Row, Spread

from nnmpi.arrays import blas
from nnmpi.comm import Comm, world

AGAINST = "bsp"


# ---- all runs, and rows of results

Runs = Mapping[Entry, Sequence[RunResult]]
"""The repeats of each entry; the number of a repeat is its seed."""


def measure(comm: Comm, entries: Sequence[Entry], a: argparse.Namespace) -> Runs:
    """Run all entries in interleaved repeats, after a warm-up run of the first."""
    run(comm, entries[0], 0, a)
    found: dict[Entry, list[RunResult]] = {entry: [] for entry in entries}
    for seed in range(a.repeats):
        for entry in entries:
            result = run(comm, entry, seed, a)
            if result is not None:
                found[entry].append(result)
        if comm.rank == 0:
            print(f"{seed + 1} of {a.repeats} repeats", file=sys.stderr, flush=True)
    return found


class Quotients(NamedTuple):
    """The speedup of one entry over another, in each repeat and in theory."""

    measured: list[float]
    theory: list[float]

    @property
    def medians(self) -> tuple[float, float]:
        """The medians of both."""
        return statistics.median(self.measured), statistics.median(self.theory)


def quotients(runs: Runs, one: Entry, other: Entry, p: int, a: argparse.Namespace) -> Quotients:
    """The speedups of `one` over `other` with p workers."""

    def duration(entry: Entry, seed: int) -> float:
        return expected(*entry, p, a.steps, seed).seconds(p * (a.steps // COLD))

    return Quotients(
        [x.rate / y.rate for x, y in zip(runs[one], runs[other], strict=True)],
        [duration(other, seed) / duration(one, seed) for seed in range(len(runs[one]))],
    )


def rows_of(runs: Runs, p: int, a: argparse.Namespace, facts: Row) -> list[Row]:
    """One row per entry, with its measured and expected ratio to BSP."""
    if any(r.seconds == 0 for found in runs.values() for r in found):
        raise SystemExit(
            f"sync.py: rank 0 was informed of all timed steps at once: {a.steps} steps are too few "
            "here; give more --steps, or a larger --base"
        )
    rows = []
    for entry, found in runs.items():
        case, mode = entry
        rate = statistics.median(r.rate for r in found)
        over = quotients(runs, entry, Entry(case, MODES[AGAINST]), p, a)
        row: Row = {
            "benchmark": "sync",
            "case": case.name,
            "subject": mode.name,
            "sync": mode.sync,
            "staleness": mode.staleness,
            "servers": mode.servers,
            "straggler": case.description,
            "workers": p,
            "ranks": p + mode.servers,
            "batch_size": a.batch,
            "steps": a.steps,
            "seconds": a.batch / rate,
            "samples_per_second": rate,
            "ratio": over.medians[0],
            "against": AGAINST,
            "ratio_low": Spread.of(over.measured).low,
            "ratio_high": Spread.of(over.measured).high,
            "ratio_least": min(over.measured),
            "ratio_most": max(over.measured),
            "ratio_in_theory": over.medians[1],
            "mean_staleness": statistics.median(r.mean_staleness for r in found),
            "largest_staleness": max(max(r.staleness, default=0) for r in found),
            "mean_staleness_in_theory": expected(case, mode, p, a.steps, 0).mean_staleness,
            "accuracy": statistics.median(r.accuracy for r in found),
            "accuracy_least": min(r.accuracy for r in found),
            "accuracy_most": max(r.accuracy for r in found),
            "repeats": len(found),
        }
        undisturbed = Entry(CASES["none"], mode)
        if undisturbed in runs:
            keys = ("over_no_straggler", "over_no_straggler_in_theory")
            row |= zip(keys, quotients(runs, entry, undisturbed, p, a).medians, strict=True)
        rows.append(row | facts)
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the table, one block per case and one line per mode."""
    heads = ("samples/s", "x bsp", "from-to", "theory", "x none", "theory")
    case = None
    for r in rows:
        if r["case"] != case:
            case = r["case"]
            print(f"\n{case}: {r['straggler']}")
            tail = f"{'staleness':>11}{'largest':>9}{'accuracy':>10}"
            print(f"{'':<11}" + "".join(f"{head:>10}" for head in heads) + tail)
        line = f"{r['subject']:<11}{r['samples_per_second']:>10,.0f}{r['ratio']:>10.2f}"
        line += f"{r['ratio_least']:>5.2f}-{r['ratio_most']:.2f}{r['ratio_in_theory']:>10.2f}"
        for key in ("over_no_straggler", "over_no_straggler_in_theory"):
            line += f"{r[key]:>10.2f}" if key in r else f"{'':>10}"
        line += f"{r['mean_staleness']:>11.1f}{r['largest_staleness']:>9}{r['accuracy']:>10.1%}"
        print(line, flush=True)


# ---- the command


def parse(argv: Sequence[str] | None, rank: int, ranks: int) -> argparse.Namespace:
    """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
    p = Parser(__doc__, "rates and staleness", prints=rank == 0)
    p.add_argument("--cases", default=",".join(CASES), help=f"which of {','.join(CASES)}")
    p.add_argument("--modes", default=",".join(MODES), help=f"which of {','.join(MODES)}")
    p.add_argument("--batch", type=int, default=128, help="samples per step of all workers")
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument(
        "--base", type=float, default=10, help="duration of a step over its computing time"
    )
    p.add_argument("--model", help="a model for images of 8x8, such as digits-cnn")
    a = p.parse_args(argv)
    if ranks < 3:
        p.error(f"needs at least 3 ranks, 2 workers and a server, got {ranks}: mpirun -n 5")
    for given, known in ((a.cases, CASES), (a.modes, MODES)):
        for unknown in [name for name in given.split(",") if name not in known]:
            p.error(f"{unknown!r} is not one of {', '.join(known)}")
    if AGAINST not in a.modes.split(","):
        p.error(f"--modes {a.modes} lacks {AGAINST}, the baseline: add it")
    if a.steps < 3 * COLD or a.repeats < 1:
        p.error(f"--steps {a.steps} --repeats {a.repeats} are too few: try 120 and 5")
    if a.batch < ranks - 1:
        p.error(f"--batch {a.batch} must be at least the number of workers, {ranks - 1}")
    if not 1 <= a.base <= 300:
        p.error(f"--base {a.base:g} must be between 1 and 300")
    p.check_outputs(a)
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Run on every rank of the job; rank 0 prints and writes the results."""
    blas.tune()
    blas.default_threads(1)
    comm = world()
    a = parse(argv, comm.rank, comm.size)
    first = comm.rank == 0
    facts = timing.machine() | {"base": a.base, "model": a.model or "digits-cnn, no BatchNorm"}
    if first:
        timing.warn_if_busy(facts)
        print(", ".join(f"{key} {value}" for key, value in facts.items()))
        print(f"{comm.size - 1} workers and a server; workers sleep until a step has taken")
        print(f"{a.base:g} times its computing time, times the slowdown of a straggler")
    cases, modes = [CASES[c] for c in a.cases.split(",")], [MODES[m] for m in a.modes.split(",")]
    runs = measure(comm, [Entry(case, mode) for case in cases for mode in modes], a)
    if first:
        rows = rows_of(runs, comm.size - 1, a, facts)
        show(rows)
        timing.finish(a.json, rows)
        if a.plot:
            plot.draw(rows, a.plot)
            print(f"plot written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()

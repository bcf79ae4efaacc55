"""What it costs to wait for others: mpirun -n 5 python benchmarks/sync.py [--plot out.png]

All ranks but the last train on the digits, and the last one serves: BSP, SSP with several bounds
and ASP, beside BSP by all-reduce, where no rank serves. Cases of stragglers:

    none      all workers alike
    random    each one is 5 times as slow at a tenth of its steps (--jitter 0.1:5)
    one slow  the first one is always 3 times as slow (--slow-rank 0:3)

Every worker sleeps on top of that, for --base times its computing in all. So several of them can
share a core as if each had one of its own, and what is compared is waiting alone. Not all of it:
workers in step compute in the same moment, and the slowest of them is slow by chance as well. How
much that is, the case "none" shows.

The network has no BatchNorm, unless --model says otherwise. Where a batch is cut over ranks that
wait for each other, BatchNorm makes them meet within each step too, and that is another matter.

Figures are samples of all workers over seconds on the wall, without the first quarter of the steps
and without the evaluation. A run is one epoch: the digits over and over, for at its end all wait.
All take turns; a ratio is the median over repeats of the quotient, and each repeat has a seed of
its own. "x bsp" is beside BSP in the same case, "x none" beside the same without stragglers, and
"theory" what either would be if a step took just what the case says, and messages nothing.
"""

import argparse
import statistics
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import paces
import timing
from flags import Parser
from paces import CASES, MODES
from sync_run import COLD, Entry, Ran, run
from timing import Row

from nnmpi.comm import Comm, world

AGAINST = "bsp"
GOALS = {("random", "ssp 3"): 1.3, ("one slow", "asp"): 1.5}


# ---- all runs, and what comes of them

Runs = Mapping[Entry, Sequence[Ran]]
"""All repeats of each, the seed of which is their number."""


def measured(comm: Comm, entries: Sequence[Entry], a: argparse.Namespace) -> Runs:
    """All in turns, the first one once more in front."""
    run(comm, entries[0], 0, a)
    found: dict[Entry, list[Ran]] = {entry: [] for entry in entries}
    for seed in range(a.repeats):
        for entry in entries:
            ran = run(comm, entry, seed, a)
            if ran is not None:
                found[entry].append(ran)
        if comm.rank == 0:
            print(f"{seed + 1} of {a.repeats} repeats", file=sys.stderr, flush=True)
    return found


class Quotients(NamedTuple):
    """How many times as fast one entry is as another, in each repeat and in theory."""

    measured: list[float]
    theory: list[float]

    @property
    def medians(self) -> tuple[float, float]:
        """Of both."""
        return statistics.median(self.measured), statistics.median(self.theory)


def quotients(runs: Runs, one: Entry, other: Entry, p: int, a: argparse.Namespace) -> Quotients:
    """Of p workers."""

    def takes(entry: Entry, seed: int) -> float:
        came = paces.expected(*entry, p, a.steps, seed)
        return came.seconds(p * (a.steps // COLD))

    return Quotients(
        [x.rate / y.rate for x, y in zip(runs[one], runs[other], strict=True)],
        [takes(other, seed) / takes(one, seed) for seed in range(len(runs[one]))],
    )


def rows_of(runs: Runs, p: int, a: argparse.Namespace, facts: Row) -> list[Row]:
    """One row for each entry, with its ratio to BSP beside what is expected."""
    rows = []
    for entry, found in runs.items():
        case, mode = entry
        rate = statistics.median(ran.rate for ran in found)
        over = quotients(runs, entry, Entry(case, MODES[AGAINST]), p, a)
        row: Row = {
            "benchmark": "sync",
            "case": case.name,
            "subject": mode.name,
            "sync": mode.sync,
            "staleness": mode.staleness,
            "servers": mode.servers,
            "straggler": case.says,
            "workers": p,
            "ranks": p + mode.servers,
            "batch_size": a.batch,
            "steps": a.steps,
            "seconds": a.batch / rate,
            "samples_per_second": rate,
            "ratio": over.medians[0],
            "against": AGAINST,
            "ratio_least": min(over.measured),
            "ratio_most": max(over.measured),
            "ratio_in_theory": over.medians[1],
            "mean_staleness": statistics.median(ran.mean_staleness for ran in found),
            "largest_staleness": max(max(ran.staleness, default=0) for ran in found),
            "mean_staleness_in_theory": paces.expected(case, mode, p, a.steps, 0).mean_staleness,
            "accuracy": statistics.median(ran.accuracy for ran in found),
            "repeats": len(found),
        }
        alike = Entry(CASES["none"], mode)
        if alike in runs:
            keys = ("over_no_straggler", "over_no_straggler_in_theory")
            row |= zip(keys, quotients(runs, entry, alike, p, a).medians, strict=True)
        if goal := GOALS.get((case.name, mode.name)):
            row["goal"] = goal
        rows.append(row | facts)
    return rows


def show(rows: Sequence[Row]) -> None:
    """The table, a block a case and a line a way."""
    heads = ("samples/s", "x bsp", "from-to", "theory", "goal", "x none", "theory")
    case = None
    for r in rows:
        if r["case"] != case:
            case = r["case"]
            print(f"\n{case}: {r['straggler']}")
            tail = f"{'staleness':>11}{'largest':>9}{'accuracy':>10}"
            print(f"{'':<11}" + "".join(f"{head:>10}" for head in heads) + tail)
        line = f"{r['subject']:<11}{r['samples_per_second']:>10,.0f}{r['ratio']:>10.2f}"
        line += f"{r['ratio_least']:>5.2f}-{r['ratio_most']:.2f}{r['ratio_in_theory']:>10.2f}"
        for key in ("goal", "over_no_straggler", "over_no_straggler_in_theory"):
            line += f"{r[key]:>10.2f}" if key in r else f"{'':>10}"
        line += f"{r['mean_staleness']:>11.1f}{r['largest_staleness']:>9}{r['accuracy']:>10.1%}"
        print(line, flush=True)


# ---- the command


def parse(argv: Sequence[str] | None, rank: int, ranks: int) -> argparse.Namespace:
    """The flags, with everything refused that would come to light after minutes otherwise."""
    p = Parser(__doc__, "rates and staleness", speaks=rank == 0)
    p.add_argument("--cases", default=",".join(CASES), help=f"which of {','.join(CASES)}")
    p.add_argument("--modes", default=",".join(MODES), help=f"which of {','.join(MODES)}")
    p.add_argument("--batch", type=int, default=128, help="samples of all workers in a step")
    p.add_argument("--steps", type=int, default=120)
    p.add_argument("--repeats", type=int, default=5)
    p.add_argument("--base", type=float, default=10, help="how much of a step is sleep, at least")
    p.add_argument("--model", help="digits-cnn, or any other for images of 8x8")
    a = p.parse_args(argv)
    if ranks < 3:
        p.error(f"{ranks} ranks are no 2 workers and a server: mpirun -n 5 or more")
    for given, known in ((a.cases, CASES), (a.modes, MODES)):
        for unknown in [name for name in given.split(",") if name not in known]:
            p.error(f"{unknown!r} is none of {', '.join(known)}")
    if AGAINST not in a.modes.split(","):
        p.error(f"--modes {a.modes}: {AGAINST} is missing, with which the others are compared")
    if a.steps < 3 * COLD or a.repeats < 1:
        p.error(
            f"--steps {a.steps} --repeats {a.repeats}: that is no time to measure in; try 120 and 5"
        )
    if a.batch < ranks - 1:
        p.error(f"--batch {a.batch} leaves some of {ranks - 1} workers nothing to do")
    if not 1 <= a.base <= 300:
        p.error(f"--base {a.base:g} must be between 1 and 300")
    p.check_outputs(a)
    return a


def main(argv: Sequence[str] | None = None) -> None:
    """Every rank of the job runs it; rank 0 prints and writes."""
    comm = world()
    a = parse(argv, comm.rank, comm.size)
    first = comm.rank == 0
    facts = timing.machine() | {"base": a.base, "model": a.model or "digits-cnn, no BatchNorm"}
    if first:
        print(", ".join(f"{key} {value}" for key, value in facts.items()))
        print(f"{comm.size - 1} workers and a server; each worker sleeps until a step has taken")
        print(f"{a.base:g} times its computing, and a straggler's so many times more")
    cases, modes = [CASES[c] for c in a.cases.split(",")], [MODES[m] for m in a.modes.split(",")]
    runs = measured(comm, [Entry(case, mode) for case in cases for mode in modes], a)
    if first:
        rows = rows_of(runs, comm.size - 1, a, facts)
        show(rows)
        timing.write_rows(a.json, rows)
        if a.plot:
            paces.draw(rows, a.plot)
            print(f"picture written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()

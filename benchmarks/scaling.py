"""Training on N ranks beside one, and beside PyTorch and JAX: python benchmarks/scaling.py

Each library trains on one rank and on N, one thread per rank, in jobs that are started once and
sleep between their turns. Weak scaling keeps the batch size per rank, strong scaling the global
one. Subjects are timed in interleaved rounds, so that noise affects all alike: a ratio is the
median over rounds of the quotient of samples per second (wall-clock time).

    nnmpi    its trainer, under mpirun       T   PyTorch as users write it
    DDP      DistributedDataParallel, gloo   T+  channels_last, fused Adam, gradients in the
                                                 buckets, and a C library that keeps freed memory
    JAX      one process with as many cores as there are ranks, a whole step by jax.jit
    mpi4jax  such a step on each rank, with mpi4jax.allreduce in it, over the same MPI
    apart    nnmpi's ranks without all-reduce: how far cores of one memory slow each other down

With --hidden, under mpirun (mpirun -n N python benchmarks/scaling.py --hidden), on one or several
hosts: the share of the gradient all-reduces' time that overlaps with the backward pass.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from lib import jobs, timing
from lib.flags import Parser
from lib.jobs import Job, Task
from lib.libraries import versions
from lib.models import WORKLOADS
from lib.rounds import interleaved
from lib.scaling.subjects import (
    BASELINE,
    NO_REDUCTION,
    OTHERS,
    WITH_MPI,
    Subject,
    processes,
    subjects_of,
)
from lib.timing import Row, Spread
from lib.workloads import MODELS

from nnmpi.arrays import blas


class Entry(NamedTuple):
    """One subject in one kind of scaling."""

    subject: Subject
    scaling: str
    per_rank: int  # samples of a step

    @property
    def samples(self) -> int:
        """Samples of a step on all ranks."""
        return self.per_rank * self.subject.ranks


Times = Mapping[Entry, Sequence[float]]
"""Seconds per step in each round."""

# ---- measuring, and rows of results


def entries_of(case: str, subjects: Sequence[Subject]) -> list[Entry]:
    """One rank, then weak, then strong scaling."""
    batch = WORKLOADS[case].shape[0]
    parallel = [s for s in subjects if s.ranks > 1]
    return [
        *(Entry(s, "one rank", batch) for s in subjects if s.ranks == 1),
        *(Entry(s, "weak", batch) for s in parallel),
        *(Entry(s, "strong", batch // s.ranks) for s in parallel if s.option != NO_REDUCTION),
    ]


def run(case: str, jobs_of: Mapping[Subject, Job], rounds: int, seconds: float) -> Times:
    """Time all entries of a case in interleaved rounds, after a warm-up that sets their length."""
    firsts = {
        entry: (jobs_of[entry.subject], Task(case, entry.per_rank, 1))
        for entry in entries_of(case, list(jobs_of))
    }
    samples = interleaved(firsts, rounds, seconds)
    return {entry: [sample.wall for sample in found] for entry, found in samples.items()}


def speedup(times: Times, a: Entry, b: Entry, key: str) -> Row:
    """a's samples per second over b's: the median over rounds, and its quartiles."""
    spread = timing.ratio([t / b.samples for t in times[b]], [t / a.samples for t in times[a]])
    return {key: spread.median, f"{key}_low": spread.low, f"{key}_high": spread.high}


def rows_of(case: str, times: Times, facts: Row) -> list[Row]:
    """One row per entry, with its speedup over one rank, PyTorch and JAX."""
    single = {e.subject.library: e for e in times if e.scaling == "one rank"}
    best = {e.scaling: e for e in times if e.subject.name in (BASELINE, "T+")}
    rows = []
    for entry, all_seconds in times.items():
        seconds, spread = statistics.median(all_seconds), Spread.of(all_seconds)
        row: Row = {
            "benchmark": "scaling",
            "case": case,
            "model": MODELS[case],
            "scaling": entry.scaling,
            "subject": entry.subject.name,
            "ranks": entry.subject.ranks,
            "batch_size": entry.samples,
            "seconds": seconds,
            "seconds_least": min(all_seconds),
            "seconds_low": spread.low,
            "seconds_high": spread.high,
            "samples_per_second": entry.samples / seconds,
            "rounds": len(all_seconds),
        }
        ours = entry.subject.library == "nnmpi" and entry.subject.option != NO_REDUCTION
        if entry.scaling != "one rank" and entry.subject.name != "DDP T":
            row |= speedup(times, entry, single[entry.subject.library], "over_one_rank")
        if ours and entry.scaling in best:
            baseline = best[entry.scaling]
            row |= speedup(times, entry, baseline, "ratio") | {"against": baseline.subject.name}
        if ours:
            others = [e for e in times if e.scaling == entry.scaling and e.subject.name in OTHERS]
            for other in others:
                row |= speedup(times, entry, other, f"ratio to {other.subject.name}")
        rows.append(row | facts)
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the table of a case, one line per entry."""
    heads = ("step ms", "samples/s", "x 1 rank", "x T+", *(f"x {name}" for name in OTHERS))
    print(f"\n{rows[0]['case']:<28}" + "".join(f"{head:>11}" for head in heads))
    for r in rows:
        where = f"{r['ranks']} ranks, {r['scaling']}" if r["ranks"] > 1 else "1 rank"
        line = f"{r['subject']:<12}{where:<16}"
        line += f"{r['seconds'] * 1e3:>11.2f}{r['samples_per_second']:>11,.0f}"
        for key in ("over_one_rank", "ratio", *(f"ratio to {name}" for name in OTHERS)):
            line += f"{r[key]:>11.2f}" if key in r else f"{'':>11}"
        print(line.rstrip(), flush=True)


# ---- the command


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse and check the flags, so that mistakes do not surface after minutes of measuring."""
    p = Parser(__doc__, "samples per second")
    p.add_argument("--cases", default=",".join(MODELS), help=f"which of {', '.join(MODELS)}")
    p.add_argument("--ranks", type=int, default=2)
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--seconds", type=float, default=0.3, help="per subject and round")
    p.add_argument(
        "--allreduce", default="auto", help="algorithms of nnmpi: auto, or ring,shared,..."
    )
    p.add_argument("--timeout", type=float, default=120, help="seconds for one task of a job")
    p.add_argument("--hidden", action="store_true", help="under mpirun: measure the overlap")
    a = p.parse_args(argv)
    a.cases, a.allreduce = a.cases.split(","), list(dict.fromkeys(a.allreduce.split(",")))
    _check(p, a)
    return a


def _check(p: Parser, a: argparse.Namespace) -> None:
    from nnmpi import addons
    from nnmpi.options.config import ALLREDUCES

    for unknown in [name for name in a.cases if name not in MODELS]:
        p.error(f"{unknown} is not a case; there are {', '.join(MODELS)}")
    sums = (*ALLREDUCES, *addons.table("library_sums"))
    for unknown in [name for name in a.allreduce if name not in sums]:
        p.error(f"{unknown!r} is not an algorithm; there are {', '.join(sums)}")
    for case in a.cases:
        batch = WORKLOADS[case].shape[0]
        if a.ranks < 2 or batch % a.ranks:
            p.error(f"--ranks {a.ranks} does not divide a batch of {batch} samples: use 2 or 4")
    if a.rounds < 1 or not 0 < a.seconds < float("inf"):
        p.error(f"--rounds {a.rounds} of {a.seconds:g} s are too short: try 21 of 0.3")
    p.check_outputs(a)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark: within an mpirun (--hidden), or with its own jobs."""
    a = parse(argv)
    if a.hidden:
        import overlap

        overlap.main(a.cases, a.allreduce[0], a.rounds, a.seconds, a.json)
    else:
        jobs.run("scaling.py", lambda: measure(a))


def measure(a: argparse.Namespace) -> None:
    """Start the jobs, time all cases, print and write the results."""
    os.environ.update(jobs.ONE_THREAD)
    blas.tune()
    facts = timing.machine()
    timing.warn_if_busy(facts)
    facts |= versions(("torch", "jax", "mpi4jax"))
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    rows: list[Row] = []
    with ExitStack() as stack:
        jobs_of = {
            s: stack.enter_context(
                Job(f"{s.name} on {s.ranks}", s.processes, partial(processes, s), a.timeout)
            )
            for s in subjects_of(a.ranks, a.allreduce, facts)
        }
        for subject in [s for s in jobs_of if s.option == WITH_MPI]:  # may be of another MPI
            if not jobs.can_run(jobs_of[subject], Task(a.cases[0], a.ranks, 1)):
                del jobs_of[subject]
        for case in a.cases:
            new = rows_of(case, run(case, jobs_of, a.rounds, a.seconds), facts)
            show(new)
            rows += new
    timing.finish(a.json, rows)
    if a.plot:
        from lib.scaling import plot

        plot.draw(rows, a.plot)
        print(f"plot written to {a.plot}", file=sys.stderr)


if __name__ == "__main__":
    main()

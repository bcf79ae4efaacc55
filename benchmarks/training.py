"""Training steps of nnmpi, PyTorch and JAX on one core: python benchmarks/training.py [--json FILE]

Each library runs in a process of its own that is bound to one core, in interleaved rounds
(A B A B ...), so that noise affects all alike. A ratio is the median over rounds of the quotient of
two that ran in the same round, in processor time of the whole process: JAX computes in threads of
its own. All take the same step from the same weights, on a batch that is in memory.

    nnmpi   as installed                    T        PyTorch eager as users write it
    F(2x2)  with --convolution winograd2    T*       channels_last and fused Adam
                                            T+       T* with a C library that keeps freed memory,
                                                     as blas.tune() makes it do for nnmpi
                                            compile  T+ with model and loss by torch.compile
                                            JAX      the whole step by jax.jit, arrays donated

"to best" is the ratio to the fastest of the others in this case, by its median.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from lib import jobs, timing
from lib.jobs import Job, Task
from lib.libraries import SUBJECTS, processes, versions
from lib.models import WORKLOADS, Workload
from lib.rounds import interleaved
from lib.tables import Column, table
from lib.timing import Row, Sample

GOALS = {"W1": 0.42, "W2": 0.8, "W3": 0.34, "W4": 0.43, "W5": 1.0, "W6": 1.0, "W7": 1.0}
"""Our goals for nnmpi's time over that of the fastest other library."""

PEERS = {"T": "torch", "T*": "torch", "T+": "torch", "compile": "torch", "JAX": "jax"}
"""What nnmpi is compared with, and the packages that it needs."""

ON_GPU = ("nnmpi", "T", "T*")
WINOGRAD2 = ("W1", "W4")
"""The cases in which F(2x2) is timed: most of their time are 3x3 convolutions."""

COMPILING = 600.0
"""Seconds for one task: a subject compiles its step in its first."""


class Benchmark(NamedTuple):
    """Its name, its cases, our goals for them, and the subjects that run them."""

    name: str
    workloads: Mapping[str, Workload]
    goals: Mapping[str, float]
    subjects: Sequence[str]


TRAINING = Benchmark("training", WORKLOADS, GOALS, tuple(SUBJECTS))


def tasks_of(case: str, jobs_of: dict[str, Job], of: Benchmark) -> dict[str, tuple[Job, Task]]:
    """The first task of each subject of a case."""
    first = Task(case, of.workloads[case].shape[0], 1)
    return {
        subject: (job, first)
        for subject, job in jobs_of.items()
        if "F(2x2)" not in subject or case in WINOGRAD2
    }


def rows_of(
    case: str, samples_of: dict[str, list[Sample]], about: Row, of: Benchmark = TRAINING
) -> list[Row]:
    """One row per subject, with nnmpi's ratios to all others and to the fastest."""
    times = {subject: [s.cpu for s in samples] for subject, samples in samples_of.items()}
    mids = {subject: timing.median(samples) for subject, samples in samples_of.items()}
    peers = [subject for subject in samples_of if subject in PEERS]
    best = min(peers, key=lambda peer: mids[peer].cpu, default=None)
    rows = []
    for subject, mid in mids.items():
        row = {
            "benchmark": of.name,
            "case": case,
            "subject": subject,
            "ranks": 1,
            "seconds": mid.wall,
            "cpu_seconds": mid.cpu,
            "samples_per_second": of.workloads[case].shape[0] / mid.wall,
            **about,
        }
        if subject not in PEERS and best is not None:
            for name, peer in [*((peer, peer) for peer in peers), ("best", best)]:
                spread, key = timing.ratio(times[subject], times[peer]), f"ratio to {name}"
                row |= {key: round(spread.median, 3)}
                row |= {f"{key}_low": spread.low, f"{key}_high": spread.high}
            row |= {"best": best, "goal": of.goals[case]}
        rows.append(row)
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the table, one line per case and subject."""
    times = Column("cpu ms", "cpu_seconds", factor=1e3), Column("wall ms", "seconds", factor=1e3)
    to = partial(Column, form="{:.2f}")
    ratios = [to(f"to {name}", f"ratio to {name}") for name in (*PEERS, "best")]
    facts = Column("goal", "goal", "{:.2f}"), Column("best", "best", "{}")
    columns = [c for c in (*times, *ratios, *facts) if any(c.key in row for row in rows)]
    print(table("", columns, rows, lambda row: f"{row['case']} {row['subject']}"))


def tune() -> None:
    """Choose kernels as the command of nnmpi does, for the rows of `precision` and `machine`."""
    from nnmpi import blas  # not above: PyTorch's processes import nothing of nnmpi

    blas.tune()


def main(of: Benchmark = TRAINING, description: str | None = __doc__) -> None:
    """Parse the flags, run the cases, print and write the results."""
    form = argparse.RawTextHelpFormatter
    p = argparse.ArgumentParser(description=description, formatter_class=form)
    p.add_argument("--cases", default=",".join(of.workloads), help="which of %(default)s")
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--seconds", type=float, default=0.2, help="per subject and round")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--json", help="write one row per measurement")
    a = p.parse_args()
    cases = a.cases.split(",")
    for unknown in set(cases) - set(of.workloads):
        p.error(f"{unknown} is not a case; there are {', '.join(of.workloads)}")
    jobs.run(f"{of.name}.py", lambda: measure(a, cases, of))


def measure(a: argparse.Namespace, cases: list[str], of: Benchmark) -> None:
    """Start the jobs, run the cases, print and write the results."""
    os.environ.update(jobs.ONE_THREAD)
    tune()
    about: dict[str, Any] = {**timing.machine(), "device": a.device, **versions(PEERS.values())}
    timing.warn_if_busy(about)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    rows: list[Row] = []
    with started(a.device, about, cases[0], of) as jobs_of:
        for case in cases:
            samples_of = interleaved(tasks_of(case, jobs_of, of), a.rounds, a.seconds)
            rows += rows_of(case, samples_of, about, of)
    show(rows)
    if a.device == "cpu" and of is TRAINING:
        import precision  # not above: PyTorch's processes import nothing of nnmpi

        rows += precision.rows("torch" in about, about)
    timing.finish(a.json, rows)


@contextmanager
def started(device: str, about: Row, case: str, of: Benchmark) -> Iterator[dict[str, Job]]:
    """The jobs of all subjects that this machine can run."""
    subjects = [s for s in of.subjects if PEERS.get(s, "numpy") in about]
    if device == "cuda":
        subjects = [s for s in subjects if s in ON_GPU]
    with ExitStack() as stack:
        jobs_of = {
            s: stack.enter_context(Job(s, 1, partial(processes, s, device), COMPILING))
            for s in subjects
        }
        first = Task(case, of.workloads[case].shape[0], 1)
        if "compile" in jobs_of and not jobs.can_run(jobs_of["compile"], first):
            del jobs_of["compile"]  # it needs a compiler
        yield jobs_of


if __name__ == "__main__":
    main()

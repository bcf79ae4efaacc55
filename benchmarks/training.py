"""Training steps of nnmpi, PyTorch and JAX on one core: python benchmarks/training.py [--json FILE]

Each library runs in a process of its own that is bound to one core, in interleaved rounds
(A B A B ...), so that noise affects all alike. A ratio is the median over rounds of the quotient of
two that ran in the same round, in processor time of the whole process: JAX computes in threads of
its own. All take the same step from the same weights, on a batch that is in memory.

    nnmpi   as installed                    T        PyTorch eager as users write it
    list    its step by nnmpi.compile
    F(2x2)  with --convolution winograd2    T*       channels_last and fused Adam
    autocast with nnmpi.autocast in bfloat16
    float32, bfloat16, float16              autocast T+ with torch.autocast in bfloat16
            its Trainer's step in these
                                            T+       T* with a C library that keeps freed memory,
                                                     as blas.tune() makes it do for nnmpi
                                            compile  T+ with model and loss by torch.compile
                                            JAX      the whole step by jax.jit, arrays donated

With --other PYTHON the PyTorch or JAX of another environment is timed in the same rounds, in the
forms of --subjects; names have the version, as in "T+ 2.15.0".

"to best" is the ratio to the fastest of the others in float32 in this case, by its median. That of
16 bits is to the faster of autocast and nnmpi in float32. A Trainer's step has what a loop of a few
lines has not: batches in a new order, the norm of the gradient, events.

GF/s are operations a second, in 10^9, and "of peak" is their share of what the core computes in
registers in float32, which is measured first if there is a C compiler. Operations are those of
linear layers and convolutions in their plain form, so that fewer of them, by Winograd, count as
more speed: lib/operations.py.

With --device cuda the subjects are nnmpi, T, T* and compile, and in 16 bits, where asked for, T*
with torch.autocast in bfloat16 (autocast), and all in bfloat16 but the loss, without masters
(pure), each eager and by torch.compile; what cannot run is left out. There are larger cases, and
ratios are of wall time: the processor waits for the GPU. Without --tf32 all compute in float32,
PyTorch's convolutions too, which by default may use TF32.
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from lib import jobs, timing
from lib.jobs import Job, Task
from lib.libraries import SUBJECTS, Device, processes, versions, versions_of
from lib.models import CASES, LARGE, WORKLOADS
from lib.operations import operations
from lib.peak import peak_text, rates
from lib.rounds import interleaved
from lib.tables import Column, table
from lib.timing import Row, Sample

GOALS = {"W1": 0.42, "W2": 0.8, "W3": 0.34, "W4": 0.43, "W5": 1.0, "W6": 1.0, "W7": 1.0}
"""Our goals for nnmpi's time over that of the fastest other library."""

GPU_GOALS = {"W1": 0.7, "W2": 1.0, "W3": 0.7, "R-1024": 1.0}
"""On a GPU."""

PEERS = {"T": "torch", "T*": "torch", "T+": "torch", "compile": "torch", "JAX": "jax"}
"""What nnmpi is compared with, and the packages that it needs."""

NARROW_TORCH = dict.fromkeys(("autocast", "autocast compile", "pure", "pure compile"), "torch")
PACKAGES = PEERS | NARROW_TORCH

ON_CPU = [s for s in SUBJECTS if s not in NARROW_TORCH or s == "autocast"]
ON_GPU = ("nnmpi", "T", "T*", "compile")
NARROW = ("nnmpi autocast", "nnmpi bfloat16", "nnmpi float16")
NARROW_PEERS = {**NARROW_TORCH, "nnmpi": "numpy", "nnmpi float32": "numpy"}
"""What computes in 16 bits, and what it is compared with."""

WINOGRAD2 = ("W1", "W4")
"""The cases in which F(2x2) is timed: most of their time are 3x3 convolutions."""

COMPILING = 600.0
"""Seconds for one task: a subject compiles its step in its first."""


def first_task(case: str, samples: int = 0) -> Task:
    """One step of a case, on so many samples or on its own number of them."""
    return Task(case, samples or CASES[case].shape[0], 1)


def tasks_of(case: str, jobs_of: dict[str, Job], samples: int) -> dict[str, tuple[Job, Task]]:
    """The first task of each subject of a case."""
    first = first_task(case, samples)
    return {
        subject: (job, first)
        for subject, job in jobs_of.items()
        if "F(2x2)" not in subject or case in WINOGRAD2
    }


def rows_of(case: str, samples_of: dict[str, list[Sample]], about: Row) -> list[Row]:
    """One row per subject, with nnmpi's ratios to all others and to the fastest."""
    on_gpu = about.get("device") == "cuda"
    kind, goals = ("wall", GPU_GOALS) if on_gpu else ("cpu", GOALS)
    goals = {} if about.get("batch") else goals  # they are for the cases as they are
    times = {
        subject: [getattr(s, kind) for s in samples] for subject, samples in samples_of.items()
    }
    mids = {subject: timing.median(samples) for subject, samples in samples_of.items()}
    batch = about.get("batch") or first_task(case).batch
    rows = []
    for subject, mid in mids.items():
        row = {
            "benchmark": "training",
            "case": case,
            "subject": subject,
            "ranks": 1,
            "seconds": mid.wall,
            "cpu_seconds": mid.cpu,
            "samples_per_second": batch / mid.wall,
            **about,
        }
        if not on_gpu and case in WORKLOADS:
            row |= rates(operations(case) * batch / WORKLOADS[case].shape[0], mid.cpu)
        known = NARROW_PEERS if subject in NARROW else PEERS
        others = [other for other in samples_of if other not in NARROW]
        peers = [other for other in others if {other, other.rpartition(" ")[0]} & {*known}]
        best = min(peers, key=lambda peer: getattr(mids[peer], kind), default=None)
        is_peer = subject in PACKAGES or subject.rpartition(" ")[0] in PACKAGES
        if not is_peer and best is not None:
            for name, peer in [*((peer, peer) for peer in peers), ("best", best)]:
                spread, key = timing.ratio(times[subject], times[peer]), f"ratio to {name}"
                row |= {key: round(spread.median, 3)}
                row |= {f"{key}_low": spread.low, f"{key}_high": spread.high}
            row["best"] = best
            row |= {"goal": goals[case]} if case in goals and known is PEERS else {}
        rows.append(row)
    return rows


def show(rows: Sequence[Row]) -> None:
    """Print the table, one line per case and subject."""
    times = Column("cpu ms", "cpu_seconds", factor=1e3), Column("wall ms", "seconds", factor=1e3)
    speeds = Column("GF/s", "gflops", "{:.0f}"), Column("of peak", "of_peak", "{:.0%}")
    to = partial(Column, form="{:.2f}")
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith("ratio to "))
    ratios = [to(key[6:], key) for key in keys if not key.endswith(("_low", "_high"))]
    facts = Column("goal", "goal", "{:.2f}"), Column("best", "best", "{}")
    columns = [c for c in (*times, *speeds, *ratios, *facts) if any(c.key in row for row in rows)]
    print(table("", columns, rows, lambda row: f"{row['case']} {row['subject']}"))


def tune() -> None:
    """Choose kernels as the command of nnmpi does, for the rows of `precision` and `machine`."""
    from nnmpi.arrays import blas  # not above: PyTorch's processes import nothing of nnmpi

    blas.tune()


def main() -> None:
    """Parse the flags, run the cases, print and write the results."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--cases", help="which of these, separated by commas: " + ", ".join(CASES))
    p.add_argument("--subjects", help="which of " + ", ".join(SUBJECTS))
    p.add_argument("--batch", type=int, default=0, help="samples; default: those of the case")
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--seconds", type=float, default=0.2, help="per subject and round")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--tf32", action="store_true", help="allow TF32 on a GPU")
    p.add_argument("--other", action="append", default=[], metavar="PYTHON", help="time its, too")
    p.add_argument("--json", help="write one row per measurement")
    a = p.parse_args()
    chosen = (
        a.cases.split(",")
        if a.cases
        else [*WORKLOADS, *LARGE]
        if a.device == "cuda"
        else [*WORKLOADS]
    )
    subjects = a.subjects.split(",") if a.subjects else [*ON_GPU] if a.device == "cuda" else ON_CPU
    for given, known in ((chosen, CASES), (subjects, SUBJECTS)):
        for unknown in set(given) - set(known):
            p.error(f"{unknown} is not one of {', '.join(known)}")
    jobs.run("training.py", lambda: measure(a, chosen, subjects))


def measure(a: argparse.Namespace, cases: list[str], subjects: list[str]) -> None:
    """Start the jobs, run the cases, print and write the results."""
    os.environ.update(jobs.ONE_THREAD)
    tune()
    packages = [PACKAGES[subject] for subject in subjects if subject in PACKAGES]
    about: dict[str, Any] = {**timing.machine(), "device": a.device, **versions(packages)}
    about |= {"tf32": a.tf32, "batch": a.batch} if a.device == "cuda" or a.batch else {}
    timing.warn_if_busy(about)
    peak = peak_text() if a.device == "cpu" else ""
    print(", ".join(f"{key} {value}" for key, value in about.items()) + peak)
    rows: list[Row] = []
    first = first_task(cases[0], a.batch)
    pythons = {s: sys.executable for s in subjects if has(s, about)}
    for other in a.other:
        of_other = versions_of(other)
        pythons |= {
            f"{s} {of_other[p]}": other for s in subjects if (p := PEERS.get(s)) in of_other
        }
    with started(Device(a.device, a.tf32), pythons, first) as found:
        for case in cases:
            tasks = tasks_of(case, found, a.batch)
            rows += rows_of(case, interleaved(tasks, a.rounds, a.seconds), about)
    show(rows)
    if a.device == "cpu" and not a.batch:
        import precision  # not above: PyTorch's processes import nothing of nnmpi

        rows += precision.rows("torch" in about, about)
    timing.finish(a.json, rows)


def has(subject: str, about: Row) -> bool:
    """Whether this machine has the package that a subject needs."""
    return PACKAGES.get(subject, "numpy") in about


@contextmanager
def started(device: Device, pythons: dict[str, str], first: Task) -> Iterator[dict[str, Job]]:
    """The jobs of these subjects, each by its Python, as far as this machine can run them."""
    with ExitStack() as stack:
        jobs_of = {}
        for s, python in pythons.items():
            subject = s if s in SUBJECTS else s.rpartition(" ")[0]
            start = partial(processes, subject, device, python=python)
            jobs_of[s] = stack.enter_context(Job(s, 1, start, COMPILING))
        for s in pythons:  # it may need a compiler, a type of numbers, or a PyTorch with CUDA
            is_sure = s == "nnmpi" or (device.name == "cpu" and "compile" not in s)
            if not is_sure and not jobs.can_run(jobs_of[s], first):
                del jobs_of[s]
        yield jobs_of


if __name__ == "__main__":
    main()

"""Training steps of nnmpi and PyTorch: python benchmarks/training.py [--json out.json]

Each library runs in a process of its own with one thread, in interleaved rounds
(A B A B ...), so that noise affects both alike. A ratio is the median over rounds of the quotient
of two that ran back to back, in processor time of the computing thread.

    nnmpi   as installed                    T    PyTorch eager as users write it
    F(4x4)  with --convolution winograd4    T*   channels_last and fused Adam
                                            T+   T* with a C library that keeps freed memory,
                                                 as blas.tune() makes it do for nnmpi
"""

import argparse
import importlib.util
import os
from contextlib import ExitStack
from functools import partial
from typing import Any

from lib import jobs, timing
from lib.jobs import Job, Task
from lib.libraries import SUBJECTS, processes
from lib.rounds import interleaved
from lib.timing import Row, Sample
from lib.workloads import WORKLOADS

TARGETS = {
    "W1": {"T": 0.52, "T*": 0.80},
    "W2": {"T": 0.62, "T*": 0.70},
    "W3": {"T": 0.22, "T*": 0.33},
    "W4": {"T": 0.58, "T*": 0.75},
    "W4 F(4x4)": {"T": 0.46, "T*": 0.60},
}
"""Our targets for nnmpi's time over PyTorch's."""


def run(case: str, jobs_of: dict[str, Job], rounds: int, seconds: float) -> dict[str, list[Sample]]:
    """Time all subjects on one case in interleaved rounds."""
    firsts = {
        subject: (job, Task(case, WORKLOADS[case].shape[0], 1))
        for subject, job in jobs_of.items()
        if "F(4x4)" not in subject or len(WORKLOADS[case].channels) > 3
    }
    return interleaved(firsts, rounds, seconds)


def rows_of(case: str, table: dict[str, list[Sample]], about: Row) -> list[Row]:
    """One row per subject, with nnmpi's ratios to each PyTorch."""
    rows = []
    for subject, samples in table.items():
        mid = timing.median(samples)
        row = {
            "benchmark": "training",
            "case": case,
            "subject": subject,
            "ranks": 1,
            "seconds": mid.wall,
            "cpu_seconds": mid.cpu,
            "samples_per_second": WORKLOADS[case].shape[0] / mid.wall,
            **about,
        }
        if subject.startswith("nnmpi"):
            for other in ("T", "T*", "T+"):
                if other in table:
                    pair = ([s.cpu for s in found] for found in (samples, table[other]))
                    spread, key = timing.ratio(*pair), f"ratio to {other}"
                    row |= {key: round(spread.median, 3)}
                    row |= {f"{key}_low": spread.low, f"{key}_high": spread.high}
        rows.append(row)
    return rows


def show(rows: list[Row]) -> None:
    """Print the table, one line per case and subject."""
    heads = (("", -18), ("cpu ms", 10), ("wall ms", 10), ("to T", 8), ("goal", 7))
    heads += (("to T*", 8), ("goal", 7), ("to T+", 8))
    print("".join(f"{h:<18}" if n < 0 else f"{h:>{n}}" for h, n in heads))
    for r in rows:
        name = f"{r['case']} {r['subject']}"
        goals = TARGETS.get(name.replace("nnmpi", "").replace("  ", " ").strip(), {})
        line = f"{name:<18}{r['cpu_seconds'] * 1e3:>10.3f}{r['seconds'] * 1e3:>10.3f}"
        for other in ("T", "T*", "T+"):
            value = r.get(f"ratio to {other}")
            line += f"{value:>8.2f}" if value is not None else f"{'':>8}"
            if other != "T+":
                goal = goals.get(other) if value is not None else None
                line += f"{goal:>7.2f}" if goal else f"{'':>7}"
        print(line)


def tune() -> None:
    """Choose kernels as the command of nnmpi does, for the rows of `precision` and `machine`."""
    from nnmpi import blas  # not above: PyTorch's processes import nothing of nnmpi

    blas.tune()


def main() -> None:
    """Parse the flags, run the cases, print and write the results."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--cases", default=",".join(WORKLOADS), help="which of W1,W2,W3,W4")
    p.add_argument("--rounds", type=int, default=21)
    p.add_argument("--seconds", type=float, default=0.2, help="per subject and round")
    p.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    p.add_argument("--json", help="write one row per measurement")
    a = p.parse_args()
    cases = a.cases.split(",")
    for unknown in set(cases) - set(WORKLOADS):
        p.error(f"{unknown} is not a case; there are {', '.join(WORKLOADS)}")
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("PyTorch is not installed (pip install 'nnmpi[bench]'): only nnmpi is timed")
    subjects = [s for s in SUBJECTS if has_torch or s.startswith("nnmpi")]
    if a.device == "cuda":
        subjects = [s for s in subjects if s not in ("nnmpi F(4x4)", "T+")]
    jobs.run("training.py", lambda: measure(a, subjects, cases, has_torch))


def measure(a: argparse.Namespace, subjects: list[str], cases: list[str], has_torch: bool) -> None:
    """Start the jobs, run the cases, print and write the results."""
    os.environ.update(jobs.ONE_THREAD)
    tune()
    about: dict[str, Any] = {**timing.machine(), "device": a.device}
    timing.warn_if_busy(about)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    rows: list[Row] = []
    with ExitStack() as stack:
        jobs_of = {
            s: stack.enter_context(Job(s, 1, partial(processes, s, a.device))) for s in subjects
        }
        for case in cases:
            rows += rows_of(case, run(case, jobs_of, a.rounds, a.seconds), about)
    show(rows)
    if a.device == "cpu":
        import precision  # not above: PyTorch's processes import nothing of nnmpi

        rows += precision.rows(has_torch, about)
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()

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
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

from lib import timing, workloads
from lib.timing import Row, Sample, Step
from lib.workloads import WORKLOADS

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

SUBJECTS: dict[str, dict[str, str]] = {
    "nnmpi": {},
    "nnmpi F(4x4)": {},
    "T": {},
    "T*": {},
    "T+": KEPT_MEMORY,
}
"""The subjects, and the environment variables of their processes."""

TARGETS = {
    "W1": {"T": 0.52, "T*": 0.80},
    "W2": {"T": 0.62, "T*": 0.70},
    "W3": {"T": 0.22, "T*": 0.33},
    "W4": {"T": 0.58, "T*": 0.75},
    "W4 F(4x4)": {"T": 0.46, "T*": 0.60},
}
"""Our targets for nnmpi's time over PyTorch's."""


def make_step(subject: str, case: str, device: str) -> Step:
    """The training step of one subject."""
    w = WORKLOADS[case]
    if subject.startswith("nnmpi"):
        algorithm = "winograd4" if "F(4x4)" in subject else "auto"
        return workloads.nnmpi_step(w, algorithm, device)
    return workloads.torch_step(w, best=subject != "T", device=device)


def serve(subject: str, device: str, seconds: float) -> None:
    """The main loop of a worker: for each case read from stdin, time one round and print it."""
    steps: dict[str, tuple[Step, int]] = {}
    for line in sys.stdin:
        case = line.strip()
        if case not in steps:
            step = _synchronised(make_step(subject, case, device), device)
            steps[case] = step, timing.calls_for(step, seconds)
        step, calls = steps[case]
        step()
        print(json.dumps(timing.measure(step, calls)), flush=True)


def _synchronised(step: Step, device: str) -> Step:
    """On a GPU, wait for the loss at the end of a step."""
    return step if device == "cpu" else lambda: step().item()


class Worker:
    """A process that times one subject on request."""

    def __init__(self, subject: str, device: str, seconds: float) -> None:
        command = [sys.executable, __file__, "--serve", subject]
        self.process = subprocess.Popen(
            [*command, "--device", device, "--seconds", str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_THREAD, **SUBJECTS[subject]},
        )

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)

    def round(self, case: str) -> Sample:
        """Time one round of a case."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{case}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker {self.process.args!r} ended during {case}")
        return Sample(*json.loads(line))


def run(case: str, workers: dict[str, Worker], rounds: int) -> dict[str, list[Sample]]:
    """Time all subjects on one case in interleaved rounds; the first one is a warm-up."""
    wanted = {
        s: w for s, w in workers.items() if "F(4x4)" not in s or len(WORKLOADS[case].channels) > 3
    }
    table: dict[str, list[Sample]] = {s: [] for s in wanted}
    for i in range(rounds + 1):
        for subject, worker in wanted.items():
            sample = worker.round(case)
            if i:
                table[subject].append(sample)
    return table


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
    p.add_argument("--serve", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.serve:
        serve(a.serve, a.device, a.seconds)
        return
    cases = a.cases.split(",")
    for unknown in set(cases) - set(WORKLOADS):
        p.error(f"{unknown} is not a case; there are {', '.join(WORKLOADS)}")
    has_torch = importlib.util.find_spec("torch") is not None
    if not has_torch:
        print("PyTorch is not installed (pip install 'nnmpi[bench]'): only nnmpi is timed")
    subjects = [s for s in SUBJECTS if has_torch or s.startswith("nnmpi")]
    if a.device == "cuda":
        subjects = [s for s in subjects if s not in ("nnmpi F(4x4)", "T+")]
    os.environ.update(ONE_THREAD)
    tune()
    about: dict[str, Any] = {**timing.machine(), "device": a.device}
    timing.warn_if_busy(about)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    rows: list[Row] = []
    with ExitStack() as stack:
        workers = {s: stack.enter_context(Worker(s, a.device, a.seconds)) for s in subjects}
        for case in cases:
            rows += rows_of(case, run(case, workers, a.rounds), about)
    show(rows)
    if a.device == "cpu":
        import precision  # not above: PyTorch's processes import nothing of nnmpi

        rows += precision.rows(has_torch, about)
    timing.finish(a.json, rows)


if __name__ == "__main__":
    main()

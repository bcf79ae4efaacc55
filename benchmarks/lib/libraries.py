"""The subjects of benchmarks/training.py, each in a process of its own, which has one core.

That is on the CPU: beside a GPU it has all.

All are bound to that core: JAX computes on as many threads as it finds cores.
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from lib import jobs, workloads
from lib.jobs import ONE_THREAD, Process
from lib.models import CASES
from lib.timing import Row, Step
from lib.workloads import Steps

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str((1 << 31) - 1)}

SUBJECTS: dict[str, dict[str, str]] = {
    "nnmpi": {},
    "nnmpi list": {},
    "nnmpi F(2x2)": {},
    "nnmpi autocast": {},
    "nnmpi float32": {},
    "nnmpi bfloat16": {},
    "nnmpi float16": {},
    "T": {},
    "T*": {},
    "T+": KEPT_MEMORY,
    "compile": KEPT_MEMORY,
    "autocast": KEPT_MEMORY,
    "autocast compile": KEPT_MEMORY,
    "pure": KEPT_MEMORY,
    "pure compile": KEPT_MEMORY,
    "JAX": KEPT_MEMORY,
}
"""The subjects, and the environment variables of their processes."""


def versions(packages: Iterable[str]) -> Row:
    """The versions of packages; says in a line each which are not installed."""
    found = {}
    for name in dict.fromkeys(packages):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            remedy = "mpi4jax" if name == "mpi4jax" else "'nnmpi[bench]'"
            print(f"{name} is not installed, so it is not timed: pip install {remedy}")
    return found


class Device(NamedTuple):
    """Where steps are computed, and whether GPUs may round factors to TF32."""

    name: str = "cpu"
    tf32: bool = False


VERSIONS = """
import importlib.metadata as m
print(*(f"{d.name} {d.version}" for d in m.distributions() if d.name in ("torch", "jax")), sep=",")
"""


def versions_of(python: str) -> dict[str, str]:
    """The versions of PyTorch and JAX that another Python has."""
    printed = subprocess.run([python, "-c", VERSIONS], check=True, capture_output=True, text=True)
    return dict(each.split() for each in printed.stdout.strip().split(",") if each)


def processes(
    subject: str, device: Device, folder: Path, python: str = sys.executable
) -> list[Process]:
    """The process of a subject, which waits for tasks."""
    math = "tf32" if device.tf32 else "float32"
    program = [python, *jobs.program(__name__)[1:]]
    command = [*program, subject, device.name, math, str(folder)]
    return [Process(command, ONE_THREAD | SUBJECTS[subject])]


def step_of(subject: str, device: Device, case: str, samples: int = 0) -> Step:
    """A training step on so many samples, or on the case's own; it returns its loss."""
    w = CASES[case]
    w = w._replace(shape=(samples or w.shape[0], *w.shape[1:]))
    if subject == "JAX":
        from lib import jax_steps  # not above: it needs JAX

        return jax_steps.jax_step(w)
    if subject in ("nnmpi float32", "nnmpi bfloat16", "nnmpi float16"):
        return workloads.trainer_step(w, subject.split()[1], *device)
    if subject.startswith("nnmpi"):
        algorithm = "winograd2" if "F(2x2)" in subject else "auto"
        forms = {"compiled": "list" in subject, "narrow": "autocast" in subject}
        return workloads.nnmpi_step(w, algorithm, *device, **forms)
    narrow, is_compiled = subject.removesuffix(" compile"), subject.endswith("compile")
    return workloads.torch_step(w, subject != "T", *device, compiled=is_compiled, narrow=narrow)


def steps_of(subject: str, device: Device, case: str, samples: int) -> Steps:
    """Training steps; on a GPU each ends when its loss is there."""
    step = step_of(subject, device, case, samples)

    def run(steps: int) -> None:
        for _ in range(steps):
            loss = step()
            if device.name != "cpu":
                loss.item()

    return run


def main(subject: str, name: str, math: str, folder: str) -> None:
    """Time tasks until the pipe is closed."""
    device = Device(name, math == "tf32")
    if name == "cpu" and hasattr(os, "sched_setaffinity"):  # not on macOS
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    jobs.serve(Path(folder), 0, lambda: None, partial(steps_of, subject, device))

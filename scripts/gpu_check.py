"""Runs tests and benchmarks on a GPU, and writes one JSON file with the results; see
scripts/gpu_check.

What is not installed is left out, and named: PyTorch, plug-ins of pytest, mpirun, NCCL.

With --emulated everything runs to its end without a GPU, on the emulated device of tests/emulator:
trainers and benchmarks take a few samples, and their times mean nothing.
"""

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnmpi
from nnmpi.addons.cuda import cudnn
from nnmpi.arrays import backend

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "tests/autograd/test_ops.py": "gradients of every op against float64 on the CPU",
    "tests/base/test_keyed.py": "random numbers are those of the CPU",
    "tests/kernels/test_cuda.py": "kernels in CUDA against NumPy",
    "tests/addons/cuda/test_cudnn.py": "convolutions by cuDNN against im2col",
    "tests/addons/cuda/test_sdpa.py": "attention by cuDNN against float64",
    "tests/addons/cuda/test_cuda_products.py": "products of 16 bits by cuBLAS against float64",
    "tests/parallel/step/test_graphs.py": "passes as CUDA graphs have the bits of the tape",
    "tests/strict/test_strict_wire.py": "messages and sums beside kernels",
    "tests/strict/test_strict_halves.py": "sums in 16 bits",
    "tests/strict/test_strict_training.py": "training steps",
    "tests/addons/cuda/test_strict_late_halves.py": "steps in 16 bits whose outcome is read late",
    "tests/addons/cuda/test_strict_late.py": "steps whose outcome is read one step late",
    "tests/strict/test_strict_conformance.py": "ranks, threads that share the GPU, equal one",
    "tests/strict/test_files_of_devices.py": "a saved model, from CPU to GPU and back",
}
"""The tests that run on the GPU, and what each of them checks."""

PLUGINS = ("pytest_timeout", "pytest_mpi")
"""The plug-ins that the settings of the tests name."""

FEW = ("--cases", "W1,W2,W5,lstm", "--batch", "2", "--seconds", "0.01", "--rounds", "1")
"""Options of the benchmark on the emulated device."""

NARROW = "nnmpi float32,nnmpi bfloat16,nnmpi float16,autocast,autocast compile,pure,pure compile"
IN_16_BITS = ("--cases", "W1,W5,gpt-384", "--subjects", NARROW)
FEW_IN_16_BITS = ("--cases", "W1", "--subjects", "nnmpi float16,nnmpi bfloat16")
"""Options of the benchmark in 16 bits."""

CASES = "W1,W2,W3,W4,W5,W1-1024,W2-1024,W4-1024,R-1024,lstm,lstm-text,gpt-128,gpt-384"

RUNS = (
    ("mnist-cnn", "synthetic:1x28x28:10:12800", 64),
    ("gpt:4x4x128", "text", 16),
    ("gpt:12x12x768", "text", 8),
)
"""Models, data and batch sizes of complete training runs."""

SMALL = (("mnist-cnn", "synthetic:1x28x28:10:64", 4),)
"""The same on the emulated device."""


def describe() -> dict[str, Any]:
    """The GPU and the versions that the figures belong to."""
    cupy = backend.get("cuda").xp
    runtime = cupy.cuda.runtime
    return {
        "gpu": runtime.getDeviceProperties(0)["name"].decode(),
        "nnmpi": nnmpi.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
        "cupy": cupy.__version__,
        "cuda_runtime": runtime.runtimeGetVersion(),
        "cuda_driver": runtime.driverGetVersion(),
        "cudnn": cudnn.version(),
    }


def emulate() -> None:
    """Gives CuPy the emulated device, in this process and in those that it starts."""
    sys.path.insert(0, str(ROOT / "tests"))
    from emulator import load
    from emulator.__main__ import environment

    os.environ.update(environment())
    load.install()


def run_tests(device: str, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Runs the tests on the device; returns the numbers of passed and skipped tests, and the
    failures."""
    report = folder / "tests.xml"
    missing = [name for name in ("pytest", *PLUGINS) if not importlib.util.find_spec(name)]
    print("".join(f"{name} is not installed\n" for name in missing), end="")
    if "pytest" in missing:
        return {"passed": 0, "skipped": 0, "failed": [], "missing": missing}
    for name in names:
        print(f"{name}: {TESTS[name]}", flush=True)
    # the settings of this project name plug-ins
    plain = ("-c", os.devnull, f"--rootdir={ROOT}", "-o", "pythonpath=tests", "-q")
    options = plain if missing else ("--timeout=600",)
    command = [sys.executable, "-m", "pytest", "-rs", *options, f"--junitxml={report}", *names]
    env = {**os.environ, "NNMPI_TEST_DEVICE": device}
    status = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    if not report.exists() or status not in (0, 1):
        failed = [f"pytest ended with {status}"]
        return {"passed": 0, "skipped": 0, "failed": failed, "missing": missing}
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    broken = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    return {
        "passed": len(cases) - len(broken) - skipped,
        "skipped": skipped,
        "failed": [f"{c.get('classname')}::{c.get('name')}" for c in broken],
        "missing": missing,
    }


def run_benchmark(folder: Path, options: Sequence[str]) -> list[Any]:
    """Runs benchmarks/training.py, which prints a table; returns its rows."""
    out = folder / "rows.json"
    command = [sys.executable, "benchmarks/training.py", "--cases", CASES, "--json", str(out)]
    subprocess.run([*command, *options], cwd=ROOT, check=True)
    rows: list[Any] = json.loads(out.read_text(encoding="utf-8"))
    return rows


def run_trainer(folder: Path, options: Sequence[str]) -> list[Any]:
    """Runs scripts/gpu_trainer.py on as many ranks as the first option says; returns its row."""
    ranks, *others = options
    command = [sys.executable, "scripts/gpu_trainer.py", *others]
    if ranks != "1":
        command = ["mpirun", "-n", ranks, *command]
    run = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
    row = json.loads(run.stdout.splitlines()[-1])
    print(row, flush=True)
    return [{"benchmark": "trainer", **row}]


def trainers(runs: Sequence[tuple[str, str, int]], gpus: int, steps: str) -> list[list[str]]:
    """The options of each training run: one GPU with each type, and all GPUs if there are
    several."""
    types = ["float32", "float16"] + ["bfloat16"] * bool(importlib.util.find_spec("ml_dtypes"))
    alone = [["1", "cuda", m, data, t, steps, str(n)] for m, data, n in runs for t in types]
    if gpus == 1 or shutil.which("mpirun") is None:
        print("one GPU, or no mpirun: NCCL is not measured")
        return alone
    return alone + [
        [str(gpus), "cuda", m, data, "float32", steps, str(n * gpus)] for m, data, n in runs
    ]


Stage = tuple[Callable[[Path, Sequence[str]], list[Any]], Sequence[str]]


def run_stages(
    out: Path, found: dict[str, Any], folder: Path, stages: Sequence[Stage]
) -> list[str]:
    """Runs the stages, and writes all results after each one; returns those that failed."""
    rows: list[Any] = []
    broken: list[str] = []

    def write() -> None:
        known = {**found, "rows": rows, "broken": broken}
        out.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")

    write()
    for run, options in stages:
        try:
            rows += run(folder, options)
        except (subprocess.CalledProcessError, OSError, ValueError, LookupError) as error:
            broken.append(f"{run.__name__} {' '.join(options)}: {error}")
        write()
    return broken


def main() -> int:
    """Runs everything and writes the file. Exit status: 1 if a test failed, 2 without a GPU."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--emulated", action="store_true", help="without a GPU")
    p.add_argument("--rounds", type=int, default=5, help="of the benchmark")
    p.add_argument("--out", default=str(ROOT / "benchmarks" / "results"), help="directory")
    p.add_argument("--tests", nargs="*", default=[*TESTS], choices=TESTS, help="default: all")
    a = p.parse_args()
    try:
        if a.emulated:
            emulate()
        backend.get("cuda")
    except (ValueError, RuntimeError) as error:
        print(f"gpu_check: {error} or --emulated", file=sys.stderr)
        return 2
    about = describe()
    on_gpu = ("--device", "cuda", "--rounds", str(a.rounds))
    if a.emulated:
        on_gpu = ("--device", "cuda", *FEW)
        runs = [(*on_gpu, "--subjects", "nnmpi"), (*on_gpu, *FEW_IN_16_BITS)]
        options = trainers(SMALL, gpus=2, steps="3")
    else:
        runs = [on_gpu, (*on_gpu, "--tf32"), (*on_gpu, *IN_16_BITS)]
        options = trainers(RUNS, backend.get("cuda").xp.cuda.runtime.getDeviceCount(), steps="60")
    stages: list[Stage] = [(run_trainer, row) for row in options]
    stages += [(run_benchmark, row) for row in runs]
    name = re.sub(r"[^a-z0-9]+", "-", about["gpu"].lower())
    out = Path(a.out) / f"gpu-{name}-{about['date']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tests = run_tests("emulated" if a.emulated else "cuda", a.tests, Path(folder))
        broken = run_stages(out, {**about, "tests": tests}, Path(folder), stages)
    failed = [*tests["failed"], *broken]
    print(f"{tests['passed']} tests passed, {len(failed)} failed; wrote {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

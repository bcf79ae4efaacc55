"""Run by scripts/gpu_check: tests and benchmarks on the GPU, and one JSON file with all of it.

With --stand-in everything runs to its end on the CPU: tests on the stand-in for CuPy, benchmarks on
a few samples. Their times say nothing.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnmpi
from nnmpi import backend
from nnmpi.cuda import cudnn

ROOT = Path(__file__).resolve().parent.parent
JOBS = "tests/project/test_mpi_jobs.py::test_over_the_mpi_of_this_environment"
TESTS = {
    "tests/autograd/test_ops.py": "gradients of every op against float64 on the CPU",
    "tests/base/test_keyed.py": "random numbers are those of the CPU",
    "tests/kernels/test_cuda.py": "kernels in CUDA against NumPy",
    "tests/kernels/test_cudnn.py": "convolutions by cuDNN against im2col",
    "tests/strict/test_strict_training.py": "training steps",
    "tests/strict/test_files_of_devices.py": "a saved model, from CPU to GPU and back",
    **{
        f"{JOBS}[{n} ranks-strict_conformance_mpi]": f"{n} ranks that share the GPU equal one"
        for n in (2, 4)
    },
}
"""What is run on the GPU: files, and jobs of mpirun."""

QUICK = ("--batch", "2", "--subjects", "nnmpi,T,T*", "--seconds", "0.01", "--rounds", "1")
"""Of the benchmark on the stand-in."""

CASES = "W1,W2,W3,W4,W1-1024,W2-1024,W4-1024,R-1024"


def describe(device: str) -> dict[str, Any]:
    """The GPU and the versions that the figures belong to."""
    about = {
        "gpu": "none: the stand-in was checked",
        "nnmpi": nnmpi.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "date": time.strftime("%Y-%m-%d"),
    }
    if device == "cuda":
        cupy = backend.get("cuda").xp
        about["gpu"] = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
        about["cupy"] = cupy.__version__
        about["cuda_runtime"] = cupy.cuda.runtime.runtimeGetVersion()
        about["cuda_driver"] = cupy.cuda.runtime.driverGetVersion()
        about["cudnn"] = cudnn.version()
    return about


def run_tests(device: str, folder: Path) -> dict[str, Any]:
    """Run the engine's tests on the device; counts of passed and skipped tests, and failures."""
    report = folder / "tests.xml"
    for name, what in TESTS.items():
        print(f"{name}: {what}", flush=True)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-rs",
        "--timeout=600",
        f"--junitxml={report}",
        *TESTS,
    ]
    chosen = "cuda" if device == "cuda" else "strictarray"
    subprocess.run(command, cwd=ROOT, env={**os.environ, "NNMPI_TEST_DEVICE": chosen}, check=False)
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    broken = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    skipped = sum(c.find("skipped") is not None for c in cases)
    return {
        "passed": len(cases) - len(broken) - skipped,
        "skipped": skipped,
        "failed": [f"{c.get('classname')}::{c.get('name')}" for c in broken],
    }


def run_benchmark(folder: Path, options: Sequence[str]) -> list[Any]:
    """Run benchmarks/training.py, which prints a table; its rows."""
    out = folder / "rows.json"
    command = [sys.executable, "benchmarks/training.py", "--cases", CASES, "--json", str(out)]
    subprocess.run([*command, *options], cwd=ROOT, check=True)
    rows: list[Any] = json.loads(out.read_text(encoding="utf-8"))
    return rows


def run_stages(
    out: Path, found: dict[str, Any], folder: Path, runs: Sequence[Sequence[str]]
) -> list[str]:
    """Run the benchmarks, and write all that is known after each stage; those that failed."""
    rows: list[Any] = []
    broken: list[str] = []
    for options in [None, *runs]:
        if options is not None:
            try:
                rows += run_benchmark(folder, options)
            except (subprocess.CalledProcessError, OSError, ValueError) as error:
                broken.append(f"benchmark {' '.join(options)}: {error}")
        stages = {**found, "rows": rows, "broken": broken}
        out.write_text(json.dumps(stages, indent=1) + "\n", encoding="utf-8")
    return broken


def main() -> int:
    """Run everything and write the file. Exit status: 1 if a test failed, 2 without a GPU."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--stand-in", action="store_true", help="try this script without a GPU")
    p.add_argument("--rounds", type=int, default=21, help="of the benchmark")
    p.add_argument("--out", default=str(ROOT / "benchmarks" / "results"), help="directory")
    a = p.parse_args()
    device = "cpu" if a.stand_in else "cuda"
    try:
        backend.get(device)
    except ValueError as error:
        print(f"gpu_check: {error} or --stand-in", file=sys.stderr)
        return 2
    about = describe(device)
    on_gpu = ("--device", "cuda", "--rounds", str(a.rounds))
    runs = [QUICK] if a.stand_in else [on_gpu, (*on_gpu, "--tf32")]
    name = "stand-in" if a.stand_in else re.sub(r"[^a-z0-9]+", "-", about["gpu"].lower())
    out = Path(a.out) / f"gpu-{name}-{about['date']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tests = run_tests(device, Path(folder))
        broken = run_stages(out, {**about, "tests": tests}, Path(folder), runs)
    failed = [*tests["failed"], *broken]
    print(f"{tests['passed']} tests passed, {len(failed)} failed; wrote {out}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())

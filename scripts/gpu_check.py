"""Run by scripts/gpu_check: tests and a benchmark on the GPU, and one JSON file with both."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import numpy as np

import nnmpi
from nnmpi import backend

ROOT = Path(__file__).resolve().parent.parent
TESTS = (
    "tests/autograd/test_ops.py",
    "tests/base/test_keyed.py",
    "tests/strict/test_strict_training.py",
)
"""Gradients of every op against float64 on the CPU, random numbers, and training steps."""


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
    return about


def run_tests(device: str, folder: Path) -> dict[str, Any]:
    """Run the engine's tests on the device; counts of passed and skipped tests, and failures."""
    report = folder / "tests.xml"
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


def run_benchmark(device: str, folder: Path, rounds: int) -> list[Any]:
    """Run benchmarks/training.py on the device; its rows."""
    out = folder / "rows.json"
    command = [sys.executable, "benchmarks/training.py", "--device", device, "--json", str(out)]
    subprocess.run([*command, "--rounds", str(rounds)], cwd=ROOT, check=True)
    rows: list[Any] = json.loads(out.read_text(encoding="utf-8"))
    return rows


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
    with tempfile.TemporaryDirectory() as folder:
        tests = run_tests(device, Path(folder))
        rows = run_benchmark(device, Path(folder), a.rounds)
    name = "stand-in" if a.stand_in else re.sub(r"[^a-z0-9]+", "-", about["gpu"].lower())
    out = Path(a.out) / f"gpu-{name}-{about['date']}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({**about, "tests": tests, "rows": rows}, indent=1) + "\n")
    print(f"{tests['passed']} tests passed, {len(tests['failed'])} failed; wrote {out}")
    return 1 if tests["failed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())

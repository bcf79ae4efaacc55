"""benchmarks/training.py: all libraries take the same steps."""

import importlib.util
import json
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.benchfiles import BENCHMARKS
from helpers.programs import printed, python

LOSSES = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from lib.libraries import Device, step_of
from lib.models import WORKLOADS

CASES = [*WORKLOADS, "R-1024"]

steps = {{case: step_of(sys.argv[1], Device(), case, 4) for case in CASES}}
print(json.dumps({{case: [step().item() for _ in range(3)] for case, step in steps.items()}}))
"""
PACKAGES = {"T+": "torch", "JAX": "jax"}


@cache
def losses(subject: str) -> dict[str, list[float]]:
    """The losses of the first three steps, from a process of its own."""
    found: dict[str, list[float]] = json.loads(printed(LOSSES, subject))
    return found


@pytest.mark.long
@pytest.mark.parametrize("subject", ["nnmpi list", "nnmpi F(2x2)", *PACKAGES])
def test_all_libraries_take_the_same_steps(subject: str) -> None:
    if importlib.util.find_spec(PACKAGES.get(subject, "numpy")) is None:
        pytest.skip(f"{PACKAGES[subject]} is not installed")
    ours, theirs = losses("nnmpi"), losses(subject)
    assert ours.keys() == theirs.keys()
    for case, values in theirs.items():
        assert values == pytest.approx(ours[case], rel=1e-4), case
        assert values[0] > values[-1]


@pytest.mark.long
def test_the_library_of_another_python_is_timed_and_named_by_its_version(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    rows = tmp_path / "rows.json"
    flags = f"--cases W3 --subjects nnmpi,T --rounds 1 --seconds 0.001 --other {sys.executable}"
    done = python(BENCHMARKS / "training.py", *flags.split(), "--json", rows, timeout=280)
    assert done.status == 0, done.err
    measured = [row for row in json.loads(rows.read_text()) if row["benchmark"] == "training"]
    subjects = ["nnmpi", "T", f"T {torch.__version__}"]
    assert [row["subject"] for row in measured] == subjects
    assert [f"ratio to {name}" in measured[0] for name in subjects] == [False, True, True]


COUNTS = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARKS)!r})
from lib.models import WORKLOADS
from lib.operations import operations

print(json.dumps({{case: operations(case) for case in WORKLOADS}}))
"""


def test_operations_of_a_step_are_counted() -> None:
    """Multiply-adds of forward passes, and of W2's and W7's first layers, which need no dx."""
    found = json.loads(printed(COUNTS))
    first, others = 128 * 784 * 1024, 128 * (1024 * 1024 + 1024 * 10)
    assert found["W2"] == 2 * (2 * first + 3 * others)
    down = 64 * 14 * 14 * 32 * 9, 64 * 7 * 7 * 64 * 32 * 9
    up = 64 * 7 * 7 * 64 * 32 * 16, 64 * 14 * 14 * 32 * 16
    assert found["W7"] == 2 * (2 * down[0] + 3 * (down[1] + sum(up)))
    assert all(count > 0 for count in found.values())

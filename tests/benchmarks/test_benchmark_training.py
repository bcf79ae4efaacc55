"""benchmarks/training.py: all libraries take the same steps."""

import importlib.util
import json
import subprocess
import sys
from functools import cache

import pytest
from helpers.benchfiles import BENCHMARKS
from helpers.mpijob import environment

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
    words = [sys.executable, "-c", LOSSES, subject]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment({}))
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


@pytest.mark.long
@pytest.mark.parametrize("subject", ["nnmpi F(2x2)", *PACKAGES])
def test_all_libraries_take_the_same_steps(subject: str) -> None:
    if importlib.util.find_spec(PACKAGES.get(subject, "numpy")) is None:
        pytest.skip(f"{PACKAGES[subject]} is not installed")
    ours, theirs = losses("nnmpi"), losses(subject)
    assert ours.keys() == theirs.keys()
    for case, values in theirs.items():
        assert values == pytest.approx(ours[case], rel=1e-4), case
        assert values[0] > values[-1]

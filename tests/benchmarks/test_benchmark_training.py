"""benchmarks/training.py: all libraries take the same steps, and its ratios."""

import importlib.util
import json
import subprocess
import sys
from functools import cache

import pytest
from helpers.benchfiles import BENCHMARKS, Import
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
COMPILES = pytest.param("JAX", marks=pytest.mark.long)  # half a minute


@cache
def losses(subject: str) -> dict[str, list[float]]:
    """The losses of the first three steps, from a process of its own."""
    words = [sys.executable, "-c", LOSSES, subject]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=environment({}))
    found: dict[str, list[float]] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("subject", ["nnmpi F(2x2)", "T+", COMPILES])
def test_all_libraries_take_the_same_steps(subject: str) -> None:
    if importlib.util.find_spec(PACKAGES.get(subject, "numpy")) is None:
        pytest.skip(f"{PACKAGES[subject]} is not installed")
    ours, theirs = losses("nnmpi"), losses(subject)
    assert ours.keys() == theirs.keys()
    for case, values in theirs.items():
        assert values == pytest.approx(ours[case], rel=1e-4), case
        assert values[0] > values[-1]


def test_ratios_are_medians_over_rounds(module: Import) -> None:
    training, timing = module("training"), module("lib.timing")
    seconds = {"nnmpi": [1.0, 2.0, 9.0], "T": [4.0, 4.0, 4.0], "T+": [2.0, 2.0, 8.0]}
    seconds["JAX"] = [2.5, 2.5, 2.5]
    samples = {s: [timing.Sample(t, 2 * t) for t in times] for s, times in seconds.items()}
    ours, *others = training.rows_of("W1", samples, {})
    assert (ours["cpu_seconds"], ours["seconds"], ours["samples_per_second"]) == (2.0, 4.0, 16.0)
    assert (ours["ratio to T"], ours["ratio to JAX"]) == (0.5, 0.8)
    assert (ours["best"], ours["ratio to best"]) == ("T+", 1.0)
    assert not any("ratio to best" in row for row in others)
    alone = training.rows_of("W1", {"nnmpi": samples["nnmpi"]}, {})
    assert "best" not in alone[0]


def test_a_trainer_in_16_bits_is_compared_with_one_in_float32(module: Import) -> None:
    training, libraries = module("training"), module("lib.libraries")
    subjects = ("nnmpi", "nnmpi float32", "nnmpi bfloat16", "nnmpi float16")
    steps = [libraries.step_of(s, libraries.Device(), "W3") for s in subjects[1:]]
    losses = [step() for step in steps]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-2)
    seconds, timing = dict(zip(subjects, (2, 4, 5, 6), strict=True)), module("lib.timing")
    samples = {subject: [timing.Sample(t, t)] for subject, t in seconds.items()}
    loop, float32, bfloat16, float16 = training.rows_of("W3", samples, {})
    assert "best" not in {*loop, *float32}
    assert (bfloat16["ratio to nnmpi float32"], float16["ratio to nnmpi float32"]) == (1.25, 1.5)


def test_a_subject_that_cannot_run_is_left_out_in_a_line(
    module: Import, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs, libraries = module("lib.jobs"), module("lib.libraries")
    words = [sys.executable, "-c", "raise SystemExit('no compiler')"]
    with jobs.Job("compile", 1, lambda _: [jobs.Process(words, {})]) as job:
        assert not jobs.can_run(job, jobs.Task("W3", 4, 1))
    assert capsys.readouterr().out == "left out: compile ended; last output: no compiler\n"
    assert libraries.versions(["numpy", "no-such-package"]).keys() == {"numpy"}
    assert capsys.readouterr().out.startswith("no-such-package is not installed")

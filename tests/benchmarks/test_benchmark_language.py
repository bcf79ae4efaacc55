"""benchmarks/language.py: a small run, and equal models of the libraries."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from helpers.benchfiles import BENCHMARKS, Import
from helpers.mpijob import environment

HAS_TORCH = importlib.util.find_spec("torch") is not None


def test_layouts_are_timed_beside_one_rank(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    command = [sys.executable, str(BENCHMARKS / "language.py"), "--small", "--rounds", "1"]
    command += ["--seconds", "0.01", "--only", "memory,weak,context", "--json", str(out)]
    done = subprocess.run(
        command, env=environment({}), capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())
    layouts = [row["layout"] for row in rows if row["section"] == "weak"]
    assert layouts == 2 * ["1 rank", "dp 2", "tp 2", "tp 2, sequence parallel", "apart"]
    assert [row["layout"] for row in rows if row["section"] == "context"] == ["1 rank", "cp 2"]
    samples = [row["batch_size"] for row in rows if row["section"] == "weak"]
    assert samples == 2 * [4, 8, 8, 8, 8]
    assert all(row["tokens_per_second"] > 0 for row in rows if row["section"] != "memory")
    assert [row["case"] for row in rows if row["section"] == "memory"] == ["T = 1024", "T = 2048"]


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
@pytest.mark.parametrize("case", ["lstm", "lstm-text", "gpt-128"])
def test_libraries_take_the_same_steps(case: str, module: Import) -> None:
    cases, workloads = module("lib.models").LANGUAGE, module("lib.workloads")
    w = cases[case]._replace(shape=(2, *cases[case].shape[1:]))
    ours, theirs = workloads.nnmpi_step(w), workloads.torch_step(w, best=True)
    losses = [[float(step().item()) for _ in range(3)] for step in (ours, theirs)]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)

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
    assert layouts == 4 * ["1 rank", "dp 2", "tp 2", "tp 2, sequence parallel", "pp 2", "apart"]
    assert [row["layout"] for row in rows if row["section"] == "context"] == ["1 rank", "cp 2"]
    samples = [row["batch_size"] for row in rows if row["section"] == "weak"]
    assert samples == 4 * [4, 8, 8, 8, 8, 8]
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


@pytest.mark.skipif(not HAS_TORCH, reason="PyTorch is not installed")
def test_subjects_of_text_training_start_alike_and_seeds_do_not(
    module: Import, tmp_path: Path
) -> None:
    text, file = module("text_training"), tmp_path / "text.txt"
    file.write_text("to be, or not to be: that is the question. " * 400)
    subjects = [*text.SUBJECTS]
    flags = ["--model", "gpt:1x2x16", "--batch-size", "8", "--epochs", "1", "--seeds", "0,1"]
    flags += ["--data", f"text:{file}"]
    flags += ["--lr-schedule", "warmup:2+cosine", "--subjects", ",".join(subjects)]
    rows = [*text.rows_of(text.parse(flags))]
    losses = {(row["subject"], row["seed"]): row["test_loss"] for row in rows}
    assert [*losses] == [(subject, seed) for seed in (0, 1) for subject in subjects]
    for seed in (0, 1):
        ours, ours_narrow, theirs, theirs_narrow = (losses[s, seed] for s in subjects)
        assert ours == pytest.approx(theirs, rel=1e-5)
        assert 1e-6 < abs(ours_narrow / ours - 1) < 1e-2
        assert 1e-6 < abs(theirs_narrow / theirs - 1) < 1e-2
    assert losses["nnmpi", 0] != pytest.approx(losses["nnmpi", 1], rel=1e-4)
    told = [line.split() for line in text.last_losses(rows)]
    assert told[0][-2:] == [f"{losses['nnmpi', seed]:.4f}" for seed in (0, 1)]

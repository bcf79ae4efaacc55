"""benchmarks/faults.py: what its ranks run, its jobs and its rows."""

from pathlib import Path

import pytest
from helpers.benchfiles import Import


def test_a_rank_makes_steps_without_end(module: Import, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = module("lib.steps_ft")
    monkeypatch.setitem(ranks.TRAINED, "W1", {"model": "iris-mlp", "data": "iris"})
    run = ranks.steps("W1", 40)
    assert [len(run(n)) for n in (2, 5)] == [2, 5]  # an epoch has 3


def test_a_row_compares_jobs_with_and_without(module: Import, tmp_path: Path) -> None:
    faults = module("faults")
    steps = {faults.TOLERANT: [2.2, 2.1], faults.PLAIN: [2.0, 2.0]}
    row = faults.row_of("W1", steps, 2, {})
    assert row["ratio"] == pytest.approx(1.075)
    assert row["ratio_least"] <= row["ratio"] <= row["ratio_most"]
    commands = [faults.processes(s, 2, tmp_path)[0].command for s in faults.SUBJECTS]
    assert commands[0][1:3] == ["--with-ft", "ulfm"]
    assert [commands[0][0], *commands[0][3:]] == [*commands[1]]


def test_the_median_of_many_figures_is_known_better(module: Import) -> None:
    timing = module("lib.timing")
    assert timing.median_interval([1.0, 2.0, 3.0]) == (1.0, 3.0)
    low, high = timing.median_interval([n / 1000 for n in range(1001)])
    assert 0.46 < low < 0.5 < high < 0.54

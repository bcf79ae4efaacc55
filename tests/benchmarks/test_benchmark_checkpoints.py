"""benchmarks/checkpoints.py: a run on threads, and its rows."""

from pathlib import Path
from typing import Any

import pytest
from helpers.benchfiles import Import

from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


def test_rows_have_each_ratio_of_rounds(
    module: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkpoints = module("checkpoints")
    monkeypatch.setitem(checkpoints.WORKLOADS, "W1", checkpoints.WORKLOADS["W3"])
    monkeypatch.setitem(checkpoints.MODEL_OF, "W1", "mlp:4-50-3")

    def rank(comm: Comm) -> list[dict[str, Any]]:
        measured = checkpoints.Measured(comm, "W1", 6, tmp_path)  # steps, of which an epoch has 4
        measured.warm_up(trains=True)
        for is_odd in (False, True):
            measured.round(True, is_odd)
        measured.close()
        rows: list[dict[str, Any]] = checkpoints.rows_of("W1", measured.cost, 6, comm.size, {})
        return rows

    rows, _ = threads.run(2, rank)
    assert [row["subject"] for row in rows] == ["step", "cpu", "waited", "write"]
    assert all(row["ratio_low"] <= row["ratio"] <= row["ratio_high"] for row in rows)
    assert all((row["rounds"], row["ranks"]) == (2, 2) for row in rows)
    (folder,) = tmp_path.glob("step-*")
    size = sum(path.stat().st_size for path in folder.iterdir())
    assert rows[0]["bytes"] == pytest.approx(size, rel=0.1)
    assert ["best" in row for row in rows] == [True, False, False, True]

"""benchmarks/backup.py: a run on threads, and its rows."""

import pytest
from helpers.benchfiles import Import

from nnmpi.comm import thread_ranks as threads


def test_rows_have_a_ratio_for_each_distance_and_the_default(
    module: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    backup = module("backup")
    monkeypatch.setitem(backup.TRAINED, "W1", {"model": "iris-mlp", "data": "iris"})
    rows, others = threads.run(2, backup.rows_of, "W1", 2, 0.001, {})
    assert {row["subject"] for row in rows} == {"default", "every 1", "every 10"}
    assert all(row["ratio"] > 0 for row in rows)
    assert all(row["ratio_low"] <= row["ratio_high"] for row in rows if "ratio_low" in row)
    sent = rows[0]["sent_bytes"] + others[0]["sent_bytes"]
    assert sent == pytest.approx(403 * 12, rel=0.05)  # values and Adam's two sums, with counts

"""benchmarks/beyond_memory.py: rows of a small model."""

import pytest
from helpers.benchfiles import Import

from nnmpi import native
from nnmpi.parallel.swapping import arena


@pytest.mark.skipif(native.kernel("arena") is None, reason="there is no arena")
def test_rows_have_a_ratio_for_each_share_of_the_memory(
    module: Import, monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = module("beyond_memory")
    monkeypatch.setattr(arena, "MEASURED", 1 << 20)
    monkeypatch.setitem(benchmark.CASES, "small", {"model": "digits-cnn", "batch_size": 256})
    monkeypatch.setattr(benchmark, "peak", lambda case, limit: {"grown_bytes": 0, "digest": ""})
    whole, half, least = benchmark.rows_of("small", 2, 1, {})
    assert whole["ratio"] == 1
    assert whole["memory_bytes"] > half["memory_bytes"] >= least["memory_bytes"]
    assert all(row["ratio"] > 0 and row["cpu_ratio"] > 0 for row in (half, least))
    assert {"predicted_ratio", "disk_write", "disk_read"} <= half.keys()

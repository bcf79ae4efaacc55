"""What ranks ask each other before it is decided what they do."""

from types import SimpleNamespace
from typing import Any

import pytest

from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.arrangement import cluster
from nnmpi.parallel.arrangement.cluster import discover, gpu_indices


def test_gpus_are_told_apart_by_their_addresses() -> None:
    """Each of these processes calls its own GPU number 0."""
    assert gpu_indices((0, 0, 0), ("07:00", "03:00", "0b:00")) == (1, 0, 2)
    assert gpu_indices((0, 0, 2, 2), ("03:00", "03:00", "03:00", "07:00")) == (0, 0, 0, 1)
    assert gpu_indices((0, 0), (None, None)) == (None, None)


def test_a_library_of_sums_is_one_that_every_rank_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    def row(name: str) -> Any:
        return SimpleNamespace(is_found=lambda on: name in on.libraries)

    table = SimpleNamespace(where=("a", "b", "c"), needed=row)
    monkeypatch.setattr(cluster, "LIBRARY_SUMS", table)
    monkeypatch.setattr(cluster.devices, "address", lambda on: "03:00")
    on: Any = [SimpleNamespace(is_host=False, libraries=names) for names in ("ab", "bc")]
    found = threads.run(2, lambda comm: discover(comm, on[comm.rank]).libraries)
    assert found == [("b",), ("b",)]

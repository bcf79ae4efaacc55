"""What laws need on threads and over MPI."""

import os

import pytest
from helpers.sample import EVERY_CASE

from nnmpi.comm.allreduce import autotune


@pytest.fixture(autouse=True)
def _few_sums_are_timed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`auto` times sums of two sizes instead of nine, up to 16 MiB. With --all, laws of a Comm time
    all."""
    if EVERY_CASE not in os.environ or not request.node.name.startswith("test_law[comm: "):
        monkeypatch.setattr(autotune, "SUM_BYTES", autotune.SUM_BYTES[:2])

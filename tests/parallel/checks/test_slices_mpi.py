"""Reproducible training over MPI: the bits are those of one rank without it."""

import json

import pytest
from helpers.mpijob import ROOT, run
from helpers.slice_runs import RUNS, trained

from nnmpi.comm import comm_self


@pytest.fixture(scope="module")
def expected() -> dict[str, list[object]]:
    one = {name: trained(comm_self(), name, 8) for name in RUNS}
    return {name: list(t[:-1]) for name, t in one.items()}


@pytest.mark.parametrize("ranks", [2, 3])
def test_the_same_bits_over_mpi(ranks: int, expected: dict[str, list[object]]) -> None:
    ended = run(ranks, ROOT / "tests" / "helpers" / "slice_runs.py", timeout=250)
    assert ended.status == 0, f"{ended.out[-2000:]}\n{ended.err[-2000:]}"
    assert json.loads(ended.out) == expected

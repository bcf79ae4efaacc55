"""A few cases of each fuzzer; `scripts/soak` runs them for as long as you like."""

from pathlib import Path

import pytest
from fuzzers import FUZZERS
from fuzzing import tried

LONG = "collectives-mpi", "checkpoints-mpi"
"""Fuzzers whose cases start several jobs; the laws over MPI try a part of it."""

NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in FUZZERS]


@pytest.mark.parametrize("name", NAMES)
def test_no_fault_is_found(name: str, is_sample: bool, tmp_path: Path) -> None:
    """One case in twenty; all of them with --all."""
    fuzzer = FUZZERS[name]
    for seed in range(0, fuzzer.cases, 20 if is_sample else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = tried(fuzzer, seed, folder)
        assert outcome.fault is None, (
            f"{outcome.what}\nrepeat it: scripts/soak --only {name} --seed {seed} --cases 1"
        )

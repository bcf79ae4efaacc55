"""A few cases of each fuzzer; `scripts/soak` runs them for as long as you like."""

from pathlib import Path

import pytest
from fuzz_deaths import is_lost
from fuzzers import FUZZERS
from fuzzing import tried

import nnmpi
from nnmpi.nn.models import iris_mlp


@pytest.mark.parametrize("name", FUZZERS)
def test_no_fault_is_found(name: str, is_sample: bool, tmp_path: Path) -> None:
    """One case in ten; all of them with --all."""
    fuzzer = FUZZERS[name]
    for seed in range(0, fuzzer.cases, 10 if is_sample else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcome = tried(fuzzer, seed, folder)
        assert outcome.fault is None, (
            f"{outcome.what}\nrepeat it: scripts/soak --only {name} --seed {seed} --cases 1"
        )


def test_a_damaged_model_and_one_that_was_not_replaced_are_lost(tmp_path: Path) -> None:
    path, done = tmp_path / "m", '{"event": "done", "parameters_sha256": "d4"}'
    assert is_lost(path, "")
    nnmpi.save(iris_mlp().state_dict(), path)
    assert not is_lost(path, "")
    assert is_lost(path, done)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert is_lost(path, "")

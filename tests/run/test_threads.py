"""How many threads BLAS takes in a run."""

import pytest
from helpers.commands import IRIS, Command

from nnmpi.arrays import blas
from nnmpi.run.setup import threads


@pytest.fixture
def numbers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of threads that are set, on two cores of a quiet machine."""
    found: list[int] = []
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(blas, "set_threads", found.append)
    monkeypatch.setattr(blas, "threads", lambda: found[-1] if found else 2)
    monkeypatch.setattr(blas, "cores", lambda ranks: 2)
    monkeypatch.setattr(threads.os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    return found


@pytest.mark.parametrize(
    ("model", "set_to"), [("digits-cnn", [1, 1]), ("mlp:64-1024-1024-10", [1, 2])]
)
def test_the_command_sets_the_number(
    model: str, set_to: list[int], numbers: list[int], command: Command
) -> None:
    done = command("--model", model, "--batch-size", "128", "--steps", "1")
    start = done.events[0]
    assert numbers == set_to
    assert start["blas"]["threads"] == set_to[-1]
    why = f"the matrix products of this model are large enough for {set_to[-1]} of 2 cores"
    assert start["blas"]["why"] == why
    assert start["advice"] == []


def test_the_number_that_a_user_has_set_stays(
    numbers: list[int], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    start = command(*IRIS, "--steps", "1").events[0]
    assert numbers == []
    assert start["blas"]["why"] == "OMP_NUM_THREADS is set"
    assert start["advice"] == []

"""Jobs in which a rank does something wrong end, and say what it was; none of them hangs."""

import os
import sys
from pathlib import Path

import pytest
from mpijob import Ended, run

BAD = Path(__file__).parents[1] / "helpers" / "badjobs.py"
LIMIT = 30.0  # seconds: far more than any of these jobs takes, and none of them is meant to hang
PYTHON = os.environ.get("NNMPI_TEST_MPICH") or sys.executable


def job(name: str, ranks: int = 2, **env: str) -> Ended:
    told = run(ranks, BAD, name, timeout=LIMIT, env=env, python=PYTHON)
    assert told.status is not None, f"{name} hangs\n{told.err}"
    return told


@pytest.mark.parametrize("name", ["clean", "finalize"])
def test_a_job_without_faults_is_left_alone(name: str) -> None:
    told = job(name, ranks=3, NNMPI_TIMEOUT="20")
    assert (told.status, told.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("raises", "rank 1 of 2: ValueError: no such thing"),
        ("raises_in_a_thread", "rank 1 of 2: ValueError: cannot reshape"),
        ("hooked", "the user's own no such thing\nrank 1 of 2: ValueError"),
        ("interrupted", "rank 1 of 2: interrupted"),
        ("aborts", "rank 1: this goes nowhere"),
        ("fails", "rank 1 has ended with exit status 3"),
        ("leaves_before_it_sends", "rank 1 has left without any call, but rank 0 waits for it in "
         "irecv of 10 float32 from rank 1"),
        ("leaves_before_it_is_through", "rank 1 has left after all_reduce of 10 float32 by ring"),
        ("polled_when_it_has_left", "rank 1 has left without any call, but rank 0 waits for it in "
         "all_reduce of 10 float32 by ring"),
    ],
)  # fmt: skip
def test_a_rank_that_ends_ends_all(name: str, says: str) -> None:
    told = job(name)
    assert told.status != 0
    assert says in told.err
    assert "interrupted" not in told.err or "Traceback" not in told.err


def test_a_rank_that_leaves_is_named_with_who_waits_for_it() -> None:
    told = job("leaves", ranks=3)
    assert told.status != 0
    line = next(line for line in told.err.splitlines() if "has left" in line)
    assert line.startswith("rank 1 has left after all_reduce of 10 float32 by ring (call 1 of")
    assert "waits for it in all_reduce of 10 float32 by ring (call 2 of Comm world, " in line


def test_a_rank_that_is_killed_ends_all() -> None:
    assert job("killed").status != 0


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("sleeps", "missing: rank 1 computes or sleeps, and has made 1 of 2 calls of world"),
        ("stopped", "missing: rank 1 does not answer: it is stopped"),
        ("waits_elsewhere", "rank 1: waits in all_reduce of 10 float32 by ring (call 1 of Comm "
         "world/1.0, "),
    ],
)  # fmt: skip
def test_a_rank_that_never_arrives_is_named(name: str, missing: str) -> None:
    told = job(name, ranks=3, NNMPI_TIMEOUT="1")
    assert told.status != 0
    report = told.err[told.err.index("longer than NNMPI_TIMEOUT") :]
    assert told.err.count("longer than NNMPI_TIMEOUT") == 1
    assert "\nmissing: rank " in report
    assert missing in report
    assert "last calls:\n" in report
    assert "stack:\n" in report
    assert "waits in barrier (call 2 of Comm world, " in report


def test_a_rank_that_is_polled_for_and_never_arrives_is_named() -> None:
    told = job("polled_while_it_sleeps", NNMPI_TIMEOUT="1")
    assert told.status != 0
    assert "longer than NNMPI_TIMEOUT, in all_reduce of 10 float32 by ring" in told.err
    assert "missing: rank 1 computes or sleeps, and has made 0 of 1 calls of world" in told.err


def test_a_rank_that_never_joins_the_world_is_not_waited_for() -> None:
    told = job("never_comes", NNMPI_TIMEOUT="1")
    assert told.status != 0
    assert "rank 0 has waited for 1 s (NNMPI_TIMEOUT) until all ranks call world()" in told.err


@pytest.mark.parametrize(
    ("name", "differ"),
    [
        ("dtype", ("all_reduce of 10 int32 by ring", "all_reduce of 10 float32 by ring")),
        ("count", ("all_reduce of 10 float32 by ring", "all_reduce of 12 float32 by ring")),
        ("operation", ("all_reduce of 10 float32 by ring", "reduce_scatter of 10 float32 by ring")),
        ("order", ("all_reduce of 20 float32 by mpi", "all_reduce of 10 float32 by mpi")),
        ("broadcast", ("all_reduce of 10 float32 by ring", "broadcast of 10 float32 from rank 0")),
    ],
)
def test_a_mismatch_is_named(name: str, differ: tuple[str, str]) -> None:
    told = job(name, NNMPI_DEBUG="collectives")
    assert told.status != 0
    line = next(line for line in told.err.splitlines() if "MismatchError: " in line)
    assert "the ranks of Comm world differ in call 1: rank 0 calls " + differ[0] in line
    assert ", while rank 1 calls " + differ[1] in line
    assert "badjobs.py:" in line


def test_a_message_that_is_too_long_ends_the_job_without_the_check_too() -> None:
    told = job("count")
    assert told.status != 0
    assert "truncated" in told.err

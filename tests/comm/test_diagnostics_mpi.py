"""Jobs in which a rank makes a mistake end with a message; none of them hangs."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.mpijob import Ended, run

BAD = Path(__file__).parents[1] / "helpers" / "badjobs.py"
TIMEOUT = "3"  # seconds
LIMIT = 200.0  # seconds: far more than any of these jobs takes, and none of them is meant to hang
PYTHON = os.environ.get("NNMPI_TEST_MPICH") or sys.executable


def long(*cases: object) -> list[Any]:
    """Cases that run with --all only."""
    marks = pytest.mark.long
    return [pytest.param(*(c if isinstance(c, tuple) else (c,)), marks=marks) for c in cases]


def job(name: str, ranks: int = 2, patient: bool = False, **env: str) -> Ended:
    how: dict[str, Any] = {"timeout": LIMIT, "env": env, "python": PYTHON, "patient": patient}
    ended = run(ranks, BAD, name, **how)
    assert ended.status is not None, f"{name} hangs\n{ended.err}"
    return ended


@pytest.mark.parametrize(
    "name", ["forks", *long("unguarded", "calls_mpi_at_exit", "clean", "finalize", "keeps_exit")]
)
def test_a_job_without_faults_is_left_alone(name: str) -> None:
    ended = job(name, NNMPI_TIMEOUT="20")
    assert (ended.status, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("raises", "rank 1 of 2: ValueError: no such thing"),
        ("interrupted", "rank 1 of 2: interrupted"),
        ("aborts", "rank 1: this goes nowhere"),
        ("leaves_short_sums", "rank 1 has left after all_reduce of 10 float32 by shared"),
        *long(
            ("raises_in_a_thread", "rank 1 of 2: ValueError: cannot reshape"),
            (
                "leaves_before_it_sends",
                "rank 0 waits for rank 1 in irecv of 10 float32 from rank 1",
            ),
            (
                "polled_when_it_has_left",
                "rank 0 waits for rank 1 in all_reduce of 10 float32 by ring",
            ),
            ("hooked", "the user's own no such thing\nrank 1 of 2: ValueError"),
            ("interrupted_as_mpi_starts", "rank 1 of 2: interrupted"),
            ("interrupted_at_its_end", "rank 0 of 2: interrupted"),
            ("all_abort", ": this goes nowhere"),
            (
                "leaves_before_it_is_through",
                "rank 1 has left after all_reduce of 10 float32 by ring",
            ),
        ),
    ],
)
def test_a_rank_that_ends_ends_all(name: str, message: str) -> None:
    ended = job(name)
    assert ended.status != 0
    assert message in ended.err
    assert "interrupted" not in ended.err or "Traceback" not in ended.err
    assert "----" not in ended.err or "interrupted" in name  # rules around what Open MPI says
    assert "Abort is in progress" not in ended.err  # what it says to a second signal


def test_ranks_that_fail_together_print_one_traceback() -> None:
    """Of the first rank, with the message last; it names the others."""
    ended = job("all_raise", ranks=3)
    assert ended.err.count("Traceback") == 1, ended.err
    first = next(line for line in ended.err.splitlines() if "Traceback" in line)[:6]
    own = [line for line in ended.err.splitlines() if line.startswith(f"{first} of 3: ")]
    about = "".join(own[: own.index(f"{first} of 3: Traceback (most recent call last):")])
    if first == "rank 2":
        assert own[-1] == "rank 2 of 3: KeyError: 'another thing'"
        assert "rank 0 failed too: ValueError: no such thing" in about
    else:
        assert own[-1] == f"{first} of 3: ValueError: no such thing"
        assert "rank 2 failed too: KeyError: 'another thing'" in about
        assert "ranks 0 and 1 failed with the same error:" in about


def test_a_rank_that_hears_of_an_error_says_nothing() -> None:
    ended = job("one_raises_for_all", ranks=3)
    assert ended.err.count("Traceback") == 1
    assert "rank 1 of 3: ValueError: no such thing" in ended.err
    assert "OtherRankError" not in ended.err


def test_a_rank_that_leaves_is_named_with_who_waits_for_it() -> None:
    ended = job("leaves", ranks=3)
    assert ended.status != 0
    line = next(line for line in ended.err.splitlines() if "has left" in line)
    assert "waits for rank 1 in all_reduce of 10 float32 by ring (call 2 of Comm world, " in line
    assert "but rank 1 has left after all_reduce of 10 float32 by ring (call 1 of " in line


def test_the_exit_status_of_a_rank_is_that_of_the_job() -> None:
    assert job("fails").status == 3


def test_a_rank_that_is_killed_ends_all() -> None:
    assert job("killed").status != 0


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        *long(
            ("sleeps", ("\nrank 1 computes or sleeps", "missing: it has made 1 of 2 calls of ",
             "time.sleep(100)")),
            ("waits_elsewhere", ("in all_reduce of 10 float32 by ring (call 1 of Comm world/1.",)),
        ),
        ("stopped", ("every rank reports, unless it is ",)),  # the end of a job cuts its output
    ],
)  # fmt: skip
def test_a_rank_that_never_arrives_is_named(name: str, texts: tuple[str, ...]) -> None:
    ended = job(name, ranks=3, patient=True, NNMPI_TIMEOUT=TIMEOUT)
    assert ended.status != 0
    assert f"has waited for longer than NNMPI_TIMEOUT={TIMEOUT} s in " in ended.err
    assert all(text in ended.err for text in texts), ended.err
    assert "last calls:\n" in ended.err
    assert "stack:\n" in ended.err
    assert "s in barrier (call 2 of Comm world, " in ended.err
    for rank in range(3):  # each reports once
        assert ended.err.count(f"\nrank {rank} has waited for ") <= 2
    assert "\nrank 1 " in ended.err or name == "stopped"


@pytest.mark.parametrize(
    ("name", "env"),
    [("never_comes", {"NNMPI_TIMEOUT": TIMEOUT}), *long(("late_never_comes", {}))],
)
def test_a_rank_that_never_joins_the_world_is_not_waited_for(
    name: str, env: dict[str, str]
) -> None:
    ended = job(name, **env)
    assert ended.status != 0
    assert f"rank 0 has waited for longer than NNMPI_TIMEOUT={TIMEOUT} s in world " in ended.err


DIFFER = {
    "dtype": ("all_reduce of 10 int32 by ring", "all_reduce of 10 float32 by ring"),
    "broadcast": ("all_reduce of 10 float32 by ring", "broadcast of 10 float32 from rank 0"),
    "count": ("all_reduce of 10 float32 by ring", "all_reduce of 12 float32 by ring"),
    "operation": ("all_reduce of 10 float32 by ring", "reduce_scatter of 10 float32 by ring"),
    "order": ("all_reduce of 20 float32 by mpi", "all_reduce of 10 float32 by mpi"),
}


@pytest.mark.parametrize("name", ["dtype", *long("broadcast", "count", "operation", "order")])
def test_a_mismatch_is_named(name: str) -> None:
    differ = DIFFER[name]
    ended = job(name, NNMPI_DEBUG="collectives")
    assert ended.status != 0
    line = next(line for line in ended.err.splitlines() if "MismatchError: " in line)
    assert "the ranks of Comm world differ in call 1: rank 0 calls " + differ[0] in line
    assert ", while rank 1 calls " + differ[1] in line
    assert "badjobs.py:" in line

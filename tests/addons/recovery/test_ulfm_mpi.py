"""Jobs of mpirun --with-ft ulfm in which ranks are killed, stop or fail: the others go on."""

import pytest
from helpers.mpijob import ROOT, Ended, run

PROGRAM = ROOT / "tests" / "helpers" / "lostranks.py"
LIMIT = 100.0  # seconds, of which each takes two; none of them is meant to hang


def job(name: str, ranks: int) -> Ended:
    ended = run(ranks, PROGRAM, name, timeout=LIMIT, fault_tolerant=True)
    assert ended.status is not None, f"{name} hangs\n{ended.err}"
    return ended


@pytest.mark.parametrize(
    ("name", "ranks", "left"),
    [
        pytest.param("one_after_another", 5, "1 4", marks=pytest.mark.long),
        ("two_at_once", 5, "0 4"),
        ("leaves_a_message", 2, "0"),
        pytest.param("hears_while_it_shrinks", 3, "0 2", marks=pytest.mark.long),
        pytest.param("dies_before_it_joins", 3, "0 2", marks=pytest.mark.long),
        ("dies_while_others_join", 3, "0 2"),
        pytest.param("dies_before_all_have_joined", 3, "0 2", marks=pytest.mark.long),
        # as rank 0 saw them
        pytest.param("dies_at_its_end", 3, "0 1 2", marks=pytest.mark.long),
    ],
)
def test_ranks_go_on_without_those_that_are_killed(name: str, ranks: int, left: str) -> None:
    ended = job(name, ranks)
    assert (ended.status, ended.out, ended.err) == (0, f"left: {left}\n", "")


def test_a_rank_that_dies_before_mpi_has_started_ends_the_job() -> None:
    ended = job("dies_before_mpi", 3)
    assert (ended.status, ended.out) == (1, "")
    assert ended.err == (
        "rank 0 waits in MPI_Init for a rank that has ended (of 3 on this host, ranks 0 and 2 "
        "still run); start the job again\n"
    )


def test_a_rank_that_is_stopped_is_killed_by_one_of_its_host() -> None:
    ended = job("stops", 3)
    assert (ended.status, ended.out) == (0, "left: 0 2\n")
    assert ended.err.count("\n") == 1
    assert "rank 0 has waited in all_reduce of 5,000 float32 by ring (call " in ended.err
    assert "for longer than NNMPI_TIMEOUT=1 s; rank 1 is silent and will be killed\n" in ended.err


def test_an_exception_ends_the_rank_alone() -> None:
    ended = job("raises", 3)
    assert (ended.status, ended.out) == (0, "left: 1 2\n")
    assert ended.err.endswith("rank 0 of 3: KeyError: 'no such thing'\n")


def test_an_exception_is_the_status_where_all_others_have_ended() -> None:
    ended = job("raises_at_its_end", 3)
    assert (ended.status, ended.out) == (1, "left: 0 1 2\n")
    assert ended.err.endswith("rank 1 of 3: ValueError: after all others\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        pytest.param("all_raise", "ValueError: the same everywhere", marks=pytest.mark.long),
        ("nobody_recovers", "RankLost: lost rank 1"),
    ],
)
def test_the_job_ends_where_nobody_can_go_on(name: str, message: str) -> None:
    ended = job(name, 3)
    assert (ended.status, ended.out) == (1, "")
    assert message in ended.err

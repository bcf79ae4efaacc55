"""Threads that progress works: what they must not do, and where their errors are raised."""

import sys
import threading
import time

import numpy as np
import pytest
from helpers.comm import brought, laws_background

from nnmpi.comm import Comm, MismatchError, comm_self, thread_ranks
from nnmpi.comm.progress import Work
from nnmpi.comm.transport.hub import DeadlockError


def helpers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "nnmpi helper"]


def done(work: Work) -> None:
    while not work.done:
        time.sleep(1e-3)


@pytest.mark.parametrize("pause", [-1e-3, 2.0, float("nan")])
def test_a_pause_out_of_range_is_refused(pause: float) -> None:
    with (
        pytest.raises(ValueError, match=r"a pause of \S+ s .* use 0 to 1"),
        comm_self().progress_thread(pause),
    ):
        pass


def test_a_rank_that_fails_ends_those_with_progress_threads() -> None:
    def law(comm: Comm) -> None:
        with comm.progress_thread():
            works = [comm.start(np.ones(9), "ring"), comm.start(np.ones(9), "tree")]
            if comm.rank == 1:
                raise KeyError("mine")
            x = comm.irecv(np.ones(2), 1)
            while True:
                x.poll()
                works[0].poll()

    with pytest.raises(KeyError, match="mine"):
        thread_ranks.run(3, law)
    assert not helpers()


def test_a_mismatch_is_raised_beside_a_progress_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")

    def law(comm: Comm) -> None:
        laws_background.a_progress_thread_completes_works(comm)
        with (
            pytest.raises(MismatchError, match="rank 1 calls all_reduce of 4"),
            comm.progress_thread(),
        ):
            done(comm.start(np.ones(3 + comm.rank % 2), "ring"))

    thread_ranks.run(3, law)


def test_a_deadlock_is_found_beside_progress_threads() -> None:
    def law(comm: Comm) -> None:
        with comm.progress_thread():
            comm.irecv(np.ones(2), (comm.rank - 1) % comm.size).wait()

    with pytest.raises(DeadlockError, match=r"rank 0: a receive of 16 bytes from rank 2"):
        thread_ranks.run(3, law)


def test_threads_within_each_other_end() -> None:
    """Each has a wake of its own: one that ends must not lose its own to another."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        comm = comm_self()
        with comm.progress_thread():
            for _ in range(1000):
                with comm.progress_thread():
                    pass
    finally:
        sys.setswitchinterval(before)
    assert not helpers()


@pytest.mark.parametrize(("p", "per_node"), [(4, 2), (5, 2), (3, 1)])
def test_it_progresses_sums_across_nodes(p: int, per_node: int) -> None:
    def law(comm: Comm) -> None:
        laws_background.a_progress_thread_completes_works(comm)
        laws_background.a_progress_thread_may_end_before_works_are_complete(comm)
        buffer = comm.shared(1000, "float32")
        buffer.mine[:] = brought.part(comm.rank, 1000, "float32")
        with comm.progress_thread():
            for work in [buffer.start(500), buffer.start(0, 100), buffer.start(100, 500)]:
                done(work)
        np.testing.assert_array_equal(buffer.total, brought.total(p, 1000, "float32"))

    thread_ranks.run(p, law, per_node=per_node)

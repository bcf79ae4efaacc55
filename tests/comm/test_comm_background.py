"""Helpers that push works forward: what they may not do, and what becomes of their errors."""

import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar

import brought
import laws_background
import numpy as np
import pytest

from nnmpi.comm import AbortedError, Comm, MismatchError
from nnmpi.comm.progress.work import Progress, Work
from nnmpi.comm.transport import threads
from nnmpi.comm.transport.threads import ThreadTransport

WORD = ContextVar("WORD", default="")


def helpers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "nnmpi helper"]


def broken(comm: Comm) -> Work:
    """A work that goes wrong when it is pushed."""

    def steps() -> Iterator[list[object]]:
        yield []
        raise OSError("the cable is out")

    return comm._calls.work(steps(), comm._calls.note("test"))


def done(work: Work) -> None:
    while not work.done:
        time.sleep(1e-3)


def test_without_thread_multiple_there_is_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadTransport, "any_thread", False)
    with pytest.raises(ValueError, match=r"not started with THREAD_MULTIPLE.*--progress poll"):
        threads.alone().background()


@pytest.mark.parametrize("pause", [-1e-3, 2.0, float("nan")])
def test_a_pause_without_sense_is_refused(pause: float) -> None:
    with (
        pytest.raises(ValueError, match=r"a pause of \S+ s .* use 0 to 1"),
        threads.alone().background(pause),
    ):
        pass


def test_a_helper_asks_nothing_while_nothing_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    help = Progress.help
    monkeypatch.setattr(Progress, "help", lambda self: (asked.append(self.idle), help(self)))

    def law(comm: Comm) -> None:
        with comm.background(pause=0):
            time.sleep(0.05)
            assert not asked
            comm.barrier()
            done(comm.start(np.ones(100), "ring"))
            comm.barrier()
            count = len(asked)
            assert count > 0
            time.sleep(0.05)
            assert len(asked) <= count + comm.size  # each may just have begun to

    threads.run(2, law)


def test_no_helper_is_left_behind() -> None:
    def law(comm: Comm) -> None:
        with comm.background():
            with comm.background():
                assert len(helpers()) == 2
            assert len(helpers()) == 1
            comm.start(np.ones(3), "ring").wait()
            raise KeyError

    with pytest.raises(KeyError):
        threads.run(1, law)
    assert not helpers()


def test_a_helper_has_the_context_of_its_rank() -> None:
    def law(comm: Comm) -> None:
        seen = []

        def steps() -> Iterator[list[object]]:
            yield []
            seen.append((WORD.get(), threading.current_thread().name))

        WORD.set("mine")
        with comm.background():
            done(comm._calls.work(steps(), comm._calls.note("test")))
        assert seen == [("mine", "nnmpi helper")]

    threads.run(1, law)


def test_what_goes_wrong_in_a_helper_is_raised_once_elsewhere_and_always_by_the_work() -> None:
    def law(comm: Comm) -> None:
        fine = np.ones(3)
        with comm.background():
            other = comm.irecv(fine, 0)
            for call in (comm.barrier, other.poll, other.wait):
                bad = broken(comm)
                done(bad)
                with pytest.raises(OSError, match="cable"):
                    call()
                for again in (bad.wait, bad.poll, bad.wait):
                    with pytest.raises(OSError, match="cable"):
                        again()
            own = broken(comm)
            done(own)
            with pytest.raises(OSError, match="cable"):
                own.wait()
            comm.isend(fine, 0).wait()
            other.wait()
            comm.barrier()  # nothing is left to be told
        assert comm._progress.idle

    threads.run(1, law)


def test_what_goes_wrong_in_a_helper_is_raised_at_its_end() -> None:
    def law(comm: Comm) -> None:
        with pytest.raises(OSError, match="cable"), comm.background():
            done(broken(comm))
        comm.barrier()

    threads.run(1, law)


def test_a_rank_that_fails_ends_those_with_helpers() -> None:
    def law(comm: Comm) -> None:
        with comm.background():
            works = [comm.start(np.ones(9), "ring"), comm.start(np.ones(9), "tree")]
            if comm.rank == 1:
                raise KeyError("mine")
            x = comm.irecv(np.ones(2), 1)
            while True:
                x.poll()
                works[0].poll()

    with pytest.raises(KeyError, match="mine"):
        threads.run(3, law)
    assert not helpers()


def test_a_mismatch_is_told_to_ranks_with_helpers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")

    def law(comm: Comm) -> None:
        laws_background.a_helper_completes_works(comm)
        with pytest.raises(MismatchError, match="rank 1 calls all_reduce of 4"), comm.background():
            done(comm.start(np.ones(3 + comm.rank % 2), "ring"))

    threads.run(3, law)


def test_ranks_with_helpers_that_wait_in_a_circle_are_found() -> None:
    def law(comm: Comm) -> None:
        with comm.background():
            comm.irecv(np.ones(2), (comm.rank - 1) % comm.size).wait()

    with pytest.raises(threads.DeadlockError, match=r"rank 0: a receive of 16 bytes from rank 2"):
        threads.run(3, law)


def test_a_rank_that_returns_early_is_found_by_those_with_helpers() -> None:
    def law(comm: Comm) -> None:
        if comm.rank != 1:
            with comm.background():
                comm.start(np.ones(2), "ring").wait()

    with pytest.raises(threads.DeadlockError, match="every rank waits: rank 0: "):
        threads.run(3, law)


def test_a_rank_is_said_to_wait_for_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its helper pushes something else; and a rank that computes waits for nobody."""
    monkeypatch.setenv("NNMPI_TIMEOUT", "0.3")
    come = threading.Event()

    def law(comm: Comm) -> None:
        with comm.background():
            work = comm.start(np.ones(10), "ring")
            if comm.rank == 1:
                come.wait()
            if comm.rank == 2:
                time.sleep(0.1)
            comm.barrier()
            work.wait()

    with pytest.raises(AbortedError, match="longer than NNMPI_TIMEOUT, in barrier") as caught:
        threads.run(3, law)
    come.set()
    report = str(caught.value)
    assert "missing: rank 1 computes or sleeps, and has made 1 of 2 calls of world" in report
    assert "ranks 0 and 2: waits in barrier (call 2 of Comm world, " in report


@pytest.mark.parametrize(("p", "per_node"), [(4, 2), (5, 2), (3, 1)])
def test_a_helper_pushes_sums_across_nodes(p: int, per_node: int) -> None:
    def law(comm: Comm) -> None:
        laws_background.a_helper_completes_works(comm)
        laws_background.a_helper_may_leave_before_works_are_complete(comm)
        buffer = comm.shared(1000, "float32")
        buffer.mine[:] = brought.part(comm.rank, 1000, "float32")
        with comm.background():
            for work in [buffer.start(500), buffer.start(0, 100), buffer.start(100, 500)]:
                done(work)
        np.testing.assert_array_equal(buffer.total, brought.total(p, 1000, "float32"))

    threads.run(p, law, per_node=per_node)

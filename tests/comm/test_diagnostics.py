"""Mistakes of ranks, with ranks as threads, and the texts that report them."""

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnmpi.comm import AbortedError, Comm, MismatchError, RankLost
from nnmpi.comm.call_log import DebugSettings
from nnmpi.comm.debug import waiting_ranks
from nnmpi.comm.debug.compare import name_ranks
from nnmpi.comm.thread_ranks import run


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")


def ones(n: int = 10, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(n, dtype)


MISMATCHES: dict[str, tuple[Callable[[Comm], object], Callable[[Comm], object]]] = {
    "dtype": (lambda c: c.reduce(ones(dtype="i4")), lambda c: c.reduce(ones())),
    "auto": (lambda c: c.barrier(), lambda c: c.all_reduce(ones())),
    "count": (lambda c: c.all_reduce(ones(12), "mpi"), lambda c: c.all_reduce(ones(), "mpi")),
    "algorithm": (lambda c: c.all_reduce(ones(), "mpi"), lambda c: c.all_reduce(ones(), "ring")),
    "operation": (lambda c: c.reduce_scatter(ones()), lambda c: c.all_gather(ones())),
    "start": (lambda c: c.start(ones(), "tree").wait(), lambda c: c.start(ones(), "ring").wait()),
    "halves": (
        lambda c: c.start_all_gather(ones()).wait(),
        lambda c: c.start_reduce_scatter(ones()).wait(),
    ),
    "parts": (
        lambda c: c.start_all_gather(ones(), parts=[10, *[0] * (c.size - 1)]).wait(),
        lambda c: c.start_all_gather(ones(), parts=[*[0] * (c.size - 1), 10]).wait(),
    ),
    "root": (lambda c: c.reduce(ones(), 1), lambda c: c.reduce(ones(), 0)),
    "broadcast": (lambda c: c.broadcast(ones()), lambda c: c.all_reduce(ones(), "ring")),
    "barrier": (lambda c: c.barrier(), lambda c: c.split(0)),
    "shared": (lambda c: c.shared(4, "float32"), lambda c: c.shared(4, "float64")),
}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MISMATCHES)
@pytest.mark.usefixtures("checked")
def test_every_rank_raises_who_differs(name: str, size: int) -> None:
    texts: list[str] = []

    def f(comm: Comm) -> None:
        other, usual = MISMATCHES[name]
        with pytest.raises(MismatchError, match=r"differ in call \d+: ranks? \d calls? ") as caught:
            (other if comm.rank == 1 else usual)(comm)
        texts.append(str(caught.value))

    run(size, f)
    assert len(texts) == size
    assert len(set(texts)) == 1
    assert f"{name_ranks([0, *range(2, size)])} call" in texts[0]
    assert "rank 1 calls " in texts[0]
    assert "test_diagnostics.py:" in texts[0]


@pytest.mark.usefixtures("checked")
def test_buffers_summed_in_another_order_are_a_mismatch() -> None:
    def f(comm: Comm) -> None:
        a, b = comm.shared(4, "float32"), comm.shared(8, "float32")
        for buffer in (a, b) if comm.rank else (b, a):
            buffer.all_reduce()

    with pytest.raises(MismatchError, match=r"rank 0 calls shared\.all_reduce of 8 float32"):
        run(2, f)


def test_a_rank_that_never_arrives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "1")
    come = threading.Event()

    def f(comm: Comm) -> None:
        comm.barrier()
        if comm.rank == 1:
            come.wait()
        comm.barrier()

    with pytest.raises(AbortedError, match="longer than NNMPI_TIMEOUT=1 s in barrier") as caught:
        run(3, f)
    come.set()
    report = str(caught.value)
    assert "\nrank 1 computes or sleeps: it waits for no other rank\n" in report
    assert "missing: it has made 1 of 2 calls of Comm world" in report
    for rank in (0, 2):
        waits = rf"rank {rank} has waited for \S+ s in barrier \(call 2 of Comm world, "
        assert re.search(waits, report)
    assert "come.wait()" in report
    assert "barrier (call 1 of Comm world, " in report


def test_a_message_that_is_never_sent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "1")
    come = threading.Event()

    def f(comm: Comm) -> None:
        if comm.rank == 0:
            comm.irecv(ones(), 2).wait()
        come.wait()

    with pytest.raises(AbortedError, match=r"in irecv of 10 float32 from rank 2") as caught:
        run(3, f)
    come.set()
    assert "\nrank 2 computes or sleeps" in str(caught.value)


def test_a_slow_rank_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "10")

    def f(comm: Comm) -> int:
        time.sleep(0.3 * comm.rank)
        comm.barrier()
        return comm.rank

    assert run(2, f) == [0, 1]


def test_a_long_wait_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(waiting_ranks, "TICK", 0.01)
    monkeypatch.setattr(waiting_ranks, "LONG_WAIT", 0.0)
    monkeypatch.setattr(waiting_ranks, "print_error", told.append)

    def f(comm: Comm) -> None:
        while comm.rank and not told:
            time.sleep(0.01)
        time.sleep(0.1 * comm.rank)  # some ticks more
        comm.barrier()

    run(2, f)
    (text,) = (text for text in told if text.startswith("rank 0 "))
    assert text.startswith("rank 0 has waited for 0 s in barrier")


def test_calls_of_a_rank_that_has_left_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others shrink, and count the calls of their new Comm from 1."""
    monkeypatch.setattr(waiting_ranks, "PATIENCE", 0.0)

    def f(comm: Comm) -> int:
        part = comm.split(None if comm.rank == 2 else 0)
        if part is None:
            return 0
        with pytest.raises(RankLost):
            part.confirm()
        left = part.shrink()
        time.sleep(0.6 * left.rank)  # in which the other one looks why it waits
        left.barrier()
        return left.size

    assert run(3, f, fault_tolerant=True) == [2, 2, 0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NNMPI_DEBUG", "yes"), *(("NNMPI_TIMEOUT", v) for v in ("0", "-1", "nan", "soon"))],
)
def test_unusable_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is '{value}': set it to .* or not at all"):
        DebugSettings.of({name: value})

"""Mistakes of ranks, with ranks as threads, and the texts that report them."""

import math
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from nnmpi.comm import AbortedError, Comm, MismatchError
from nnmpi.comm.call_log import CallLog, CallRecord, CallSignature, DebugSettings, LoggedCall
from nnmpi.comm.debug import watchdog
from nnmpi.comm.debug.compare import decode, difference, encode, name_ranks
from nnmpi.comm.debug.verdict import Judge
from nnmpi.comm.debug.watchdog import Left, report
from nnmpi.comm.progress import Progress
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


@pytest.mark.parametrize("size", [2, 3, 5])
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


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.usefixtures("checked")
def test_equal_calls_from_different_lines_are_no_mismatch(size: int) -> None:
    def f(comm: Comm) -> float:
        array, later = ones(3), ones(3)
        if comm.rank:
            comm.all_reduce(array, "ring")
        else:
            comm.all_reduce(array, "ring")
        comm.start(later, "ring").wait()
        comm.barrier()
        part = comm.split(comm.rank % 2)
        assert part is not None
        part.broadcast(array)
        return float(array[0])

    assert run(size, f) == [size] * size


def test_the_comparison_is_not_in_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(comm: Comm) -> list[int]:
        comm.all_reduce(ones(), "ring")
        return [*comm.ledger.sent_messages, *comm.ledger.received_bytes]

    without = run(3, f)
    monkeypatch.setenv("NNMPI_DEBUG", "collectives")
    assert run(3, f) == without


@pytest.mark.usefixtures("checked")
def test_the_comparison_does_not_deadlock_with_a_wait() -> None:
    """Rank 1 is in the wait for the first sum while the others compare the second."""

    def f(comm: Comm) -> float:
        first, second = ones(), ones()
        work = comm.start(first, "ring")
        if comm.rank == 1:
            work.wait()
        later = comm.start(second, "ring")
        later.wait()
        work.wait()
        return float(first[0] + second[0])

    assert run(3, f) == [6.0] * 3


@pytest.mark.usefixtures("checked")
def test_start_does_not_wait_for_the_comparison() -> None:
    """Else rank 0 would wait for rank 1, which waits for a message from rank 0."""

    def f(comm: Comm) -> float:
        total, message = ones(), ones()
        if comm.rank:
            comm.irecv(message, 0).wait()
            comm.all_reduce(total, "ring")
        else:
            work = comm.start(total, "ring")
            comm.isend(message, 1).wait()
            work.wait()
        return float(total[0])

    assert run(2, f) == [2.0, 2.0]


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


def test_a_deadlock_of_ranks_that_poll_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for what the other has not started."""
    monkeypatch.setenv("NNMPI_TIMEOUT", "1")

    def f(comm: Comm) -> None:
        parts = [comm.split(0), comm.split(0)]
        part = parts[comm.rank]
        assert part is not None
        other = comm.irecv(ones(), 1 - comm.rank)
        part.all_reduce(ones(), "ring")
        other.wait()

    with pytest.raises(AbortedError, match="longer than NNMPI_TIMEOUT=1 s in all_reduce") as caught:
        run(2, f)
    for rank in (0, 1):
        assert f"rank {rank} has waited for " in str(caught.value)
        assert f"(call 1 of Comm world/{rank + 1}.0, " in str(caught.value)


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


def test_a_rank_that_has_left_and_a_long_wait_are_reported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "1")
    monkeypatch.setattr(watchdog, "LONG_WAIT", 0.2)
    come = threading.Event()

    def f(comm: Comm) -> None:
        if comm.rank == 0:
            comm.irecv(ones(), 1).wait()
        if comm.rank == 2:
            come.wait()

    with pytest.raises(AbortedError, match="\nrank 1 has left") as caught:
        run(3, f)
    come.set()
    assert str(caught.value).count("computes or sleeps") == 1
    assert capfd.readouterr().err.count(" s in irecv of 10 float32 from rank 1 (") == 1


def test_a_slow_rank_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "10")

    def f(comm: Comm) -> int:
        time.sleep(0.3 * comm.rank)
        comm.barrier()
        return comm.rank

    assert run(2, f) == [0, 1]


@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        ({}, DebugSettings(False, math.inf)),
        ({"NNMPI_DEBUG": "", "NNMPI_TIMEOUT": ""}, DebugSettings(False, math.inf)),
        ({"NNMPI_DEBUG": "collectives", "NNMPI_TIMEOUT": "2.5"}, DebugSettings(True, 2.5, 2.5)),
    ],
)
def test_settings_are_read_from_the_environment(
    environment: dict[str, str], settings: DebugSettings
) -> None:
    assert DebugSettings.of(environment) == settings


@pytest.mark.parametrize(
    ("name", "value"),
    [("NNMPI_DEBUG", "yes"), *(("NNMPI_TIMEOUT", v) for v in ("0", "-1", "nan", "soon"))],
)
def test_unusable_settings_are_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is '{value}': set it to .* or not at all"):
        DebugSettings.of({name: value})


def call(
    number: int = 4, operation: str = "all_reduce", root: int = -1, line: int = 7
) -> LoggedCall:
    dtype = np.dtype("float32")
    return LoggedCall("world", number, operation, "ring", dtype, 1000, root, "/else/where.py", line)


def record(number: int = 4) -> CallRecord:
    """What the log keeps of that call."""
    code = compile("\n" * 6 + "pass", "/else/where.py", "exec")
    what = CallSignature("world", "all_reduce", "ring", np.dtype("float32"), 1000, -1)
    return what, number, code, len(code.co_code) - 2


def test_a_record_is_read_as_a_call() -> None:
    assert LoggedCall.of(record()) == call()


def test_the_text_of_a_call() -> None:
    assert str(call()) == (
        "all_reduce of 1,000 float32 by ring (call 4 of Comm world, /else/where.py:7)"
    )
    assert call(operation="reduce", root=2).text == "reduce of 1,000 float32 to rank 2 by ring"
    assert str(call(-1, "irecv", 3)).startswith("irecv of 1,000 float32 from rank 3")


def test_a_difference_names_lines_and_the_smaller_group_first() -> None:
    calls = [call(line=1), call(line=2), call(operation="reduce", root=0), call(line=1)]
    assert difference(calls) == (
        "the ranks of Comm world differ in call 4: "
        "rank 2 calls reduce of 1,000 float32 to rank 0 by ring (/else/where.py:7), while "
        "ranks 0, 1 and 3 call all_reduce of 1,000 float32 by ring "
        "(/else/where.py:1 or /else/where.py:2)"
    )


def test_a_call_survives_its_encoding() -> None:
    for c in (call(), call()._replace(dtype=None, file="/où/" + 200 * "x" + ".py")):
        there = decode(encode(c))
        assert there.text == c.text
        assert c.file.encode("ascii", "replace").decode().endswith(there.file)


def test_a_report_shows_calls_and_stack() -> None:
    log = CallLog()
    log.counter("world", (0, 1)).calls = 4
    log.records.append(record(3))
    with log.during(record()):
        text, after = (
            report(1, Progress(log), threading.get_ident(), call(number)) for number in (5, 4)
        )
    first, *rest = text.splitlines()
    assert re.fullmatch(r"rank 1 has waited for 0.0 s in all_reduce .*where.py:7\)", first)
    assert rest[:3] == [
        "  missing: it has made 4 of 5 calls of Comm world",
        "  last calls:",
        f"    {call(3)}",
    ]
    assert "test_a_report_shows" in text
    assert after.splitlines()[1] == rest[1]


def test_a_rank_that_has_left_joins_only_what_it_has_completed() -> None:
    left = Left({"world": 4}, [["world", 4]], "after all", 0.0)
    assert left.joins(call(3))
    assert not left.joins(call(4))
    assert left._replace(incomplete=[]).joins(call(4))
    assert not left.joins(call(-1, "irecv", 1))


def test_a_fault_tolerant_job_that_waits_too_long_for_its_start_ends(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """No rank has heard of another, so none can have one killed that is silent."""
    monkeypatch.setattr(watchdog, "TIME_TO_REPORT", 0.0)
    progress, statuses = Progress(CallLog(DebugSettings(timeout=0.1))), list[int]()
    ended = threading.Event()

    def end_job(status: int) -> None:
        statuses.append(status)
        ended.set()

    with progress.log.during(record()):
        watched = watchdog.Watchdog(0, progress, Judge(end_job, fault_tolerant=True))
        assert ended.wait(20)
    watched.leave()
    assert statuses[0] == 1
    assert "rank 0 has waited for longer than NNMPI_TIMEOUT=0.1 s in all_" in capfd.readouterr().err


def test_only_the_last_calls_are_kept() -> None:
    log = CallLog()
    for number in range(50):
        log.records.append(record(number))
    assert [c.number for c in log.calls] == list(range(30, 50))

"""The hooks for exceptions that end a rank, beside hooks of the user."""

import sys
import threading

import pytest

from nnmpi.comm.debug.exit_hooks import Failures, JobEnd, install


@pytest.mark.parametrize("is_own", [False, True])
def test_an_exception_of_a_thread_is_printed_once(
    is_own: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By the hook of the user, if there is one."""
    heard, statuses = list[str](), list[int]()
    before = threading.__excepthook__
    if is_own:
        before = lambda args: heard.append(str(args.exc_value))  # noqa: E731
    monkeypatch.setattr(threading, "excepthook", before)
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    install(1, 3, JobEnd(statuses.append), lambda message, follows: Failures())

    def fails() -> None:
        raise ValueError("bad batch")

    thread = threading.Thread(target=fails, name="loader")
    thread.start()
    thread.join()
    printed = capfd.readouterr().err
    assert printed.startswith("rank 1 of 3: in thread loader:\n")
    assert heard == (["bad batch"] if is_own else [])
    assert ("ValueError: bad batch" in printed) is not is_own
    assert "ValueError" in printed
    assert statuses == [1]

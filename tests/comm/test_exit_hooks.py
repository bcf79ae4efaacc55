"""What a rank does when an exception ends it, here in a process without a job."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from helpers.mpijob import ROOT

from nnmpi import Config, nn
from nnmpi.comm import traceback_text


def test_a_forked_process_is_no_rank_of_the_job(tmp_path: Path) -> None:
    ended = script(
        tmp_path,
        """
        child = os.fork()
        if child == 0:
            raise ValueError("in the child")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        raise ValueError("in the rank")
        """,
    )
    assert (ended.returncode, ended.stdout) == (41, "1\n")
    assert "rank 1 of 4: ValueError: in the rank" in ended.stderr
    assert "rank 1 of 4: ValueError: in the child" not in ended.stderr


def test_an_exception_without_text_ends_the_job_too(tmp_path: Path) -> None:
    ended = script(
        tmp_path,
        """
        class Mute(Exception):
            def __str__(self):
                raise IndexError

        raise Mute
        """,
    )
    assert ended.returncode == 41
    assert "Mute: <exception str() failed>" in ended.stderr


@pytest.mark.parametrize(
    ("error", "all_over", "status"),
    [("RankLost('lost rank 2')", False, 41), ("ValueError", True, 41), ("ValueError", False, -9)],
)
@pytest.mark.parametrize("own", [False, True])
def test_a_fault_tolerant_job_goes_on_without_a_rank_that_fails_alone(
    tmp_path: Path, error: str, all_over: bool, status: int, own: bool
) -> None:
    ended = script(
        tmp_path,
        f"""
        import sys
        from nnmpi.comm import RankLost

        sys.excepthook = (lambda *_: print("own")) if {own} else sys.__excepthook__
        judge = verdict.Judge(lambda status: os._exit(40 + status), fault_tolerant=True)
        found = exit_hooks.Failures(all_over={all_over})
        exit_hooks.install(1, 4, judge, lambda message, follows: found)
        raise {error}
        """,
    )
    assert (ended.returncode, ended.stdout) == (status, "own\n" * own)
    assert ended.stderr.splitlines()[-1].startswith(f"rank 1 of 4: {error[:8]}")


class Wrong(nn.Module):
    def forward(self, x: Any) -> Any:
        try:
            return x + self.missing
        except AttributeError as error:
            raise RuntimeError("not like this") from error


@pytest.mark.parametrize("full", [False, True])
def test_a_traceback_has_the_frames_of_the_user(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NNMPI_TRACEBACK", "full" if full else "")
    with pytest.raises(RuntimeError) as caught:
        np.errstate()(Wrong())(1)  # NumPy's frame is between those of nnmpi when it trains
    text = traceback_text(caught.value)
    assert text.endswith("\nRuntimeError: not like this\n")
    assert "has no attribute 'missing'\n\nThe above exception was the direct cause" in text
    assert text.count("return x + self.missing") == text.count("Wrong())(1)") == 1
    assert ("return func(*args" in text) == full
    assert ("module.py" in text, "NNMPI_TRACEBACK=full shows them" in text) == (full, not full)


def test_a_traceback_of_nnmpi_alone_is_whole() -> None:
    with pytest.raises(ValueError, match="lr") as caught:
        Config(lr=-1)
    trace = caught.tb
    while trace.tb_next and "config.py" not in trace.tb_frame.f_code.co_filename:
        trace = trace.tb_next
    text = traceback_text(caught.value.with_traceback(trace))
    assert text.startswith("Traceback")
    assert "config.py" in text


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs it as rank 1 of a job that aborts with status 41."""
    start = """
import os
from nnmpi.comm.debug import exit_hooks, verdict
exit_hooks.install(1, 4, verdict.Judge(lambda status: os._exit(40 + status)))
"""
    (folder / "script.py").write_text(start + dedent(text))
    return subprocess.run(
        [sys.executable, folder / "script.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=200,
        check=False,
    )

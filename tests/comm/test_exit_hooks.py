"""What a rank does when an exception ends it, here in a process without a job."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from helpers.mpijob import ROOT


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


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs it as rank 1 of a job that aborts with status 41."""
    start = """
import os
from nnmpi.comm.debug import exit_hooks
exit_hooks.install(1, 4, lambda status: os._exit(40 + status))
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

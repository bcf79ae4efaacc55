"""What a process of a job does when it ends in an unusual way; the job itself is left out."""

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from mpijob import ROOT


def test_a_forked_process_is_no_rank_of_the_job(tmp_path: Path) -> None:
    told = script(
        tmp_path,
        """
        child = os.fork()
        if child == 0:
            raise ValueError("in the child")
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        raise ValueError("in the rank")
        """,
    )
    assert (told.returncode, told.stdout) == (41, "1\n")
    assert "rank 1 of 4: ValueError: in the rank" in told.stderr
    assert "rank 1 of 4: ValueError: in the child" not in told.stderr


def test_the_exit_status_is_known_unless_somebody_has_caught_it(tmp_path: Path) -> None:
    told = script(
        tmp_path,
        """
        atexit.register(lambda: print(ends.status()))
        print(ends.status())
        try:
            sys.exit(4)
        except SystemExit:
            time.sleep(1.1)
        print(ends.status())
        sys.exit(3)
        """,
    )
    assert (told.returncode, told.stdout) == (3, "0\n0\n3\n")


def script(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Runs it as rank 1 of a job that aborts with status 41."""
    start = """
import atexit, os, sys, time
from nnmpi.comm.debug.exit_hooks import Ends
ends = Ends(1, 4, lambda status: os._exit(40 + status))
ends.install()
"""
    (folder / "script.py").write_text(start + dedent(text))
    return subprocess.run(
        [sys.executable, folder / "script.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )

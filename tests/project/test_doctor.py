"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import os
import subprocess
import sys
from pathlib import Path

from helpers.mpijob import ROOT, environment

from nnmpi import doctor

NOISY = """
import atexit, sys
print("Error: 3 3", end=" ")
print("hello", file=sys.stderr)
atexit.register(print, "bye")
"""


def test_the_command_looks_at_everything_on_this_machine(tmp_path: Path) -> None:
    """Also where Python itself prints as it starts."""
    (tmp_path / "sitecustomize.py").write_text(NOISY)
    done = subprocess.run(
        [sys.executable, "-m", "nnmpi.doctor"],
        check=False,
        capture_output=True,
        text=True,
        env=environment({"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}),
    )
    assert done.stderr == "hello\n"
    assert "two ranks found each other" in done.stdout
    assert "Error" not in done.stdout.removeprefix("Error: 3 3 ")
    done.stdout = done.stdout.removeprefix("Error: 3 3 ").removesuffix("bye\n")
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [name for name in doctor.CHECKS if not any(x.startswith(name) for x in lines)] == []
    assert (lines[-1] == "all is well") == (done.returncode == 0) == ("-> " not in done.stdout)

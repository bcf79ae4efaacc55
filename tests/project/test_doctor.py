"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import subprocess
import sys

from helpers.mpijob import ROOT, environment

from nnmpi import doctor


def test_the_command_looks_at_everything_on_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nnmpi.doctor"],
        check=False,
        capture_output=True,
        text=True,
        env=environment({"PYTHONPATH": str(ROOT)}),
    )
    assert done.stderr == ""
    assert "two ranks found each other" in done.stdout
    lines = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [name for name in doctor.CHECKS if not any(x.startswith(name) for x in lines)] == []
    assert (lines[-1] == "all is well") == (done.returncode == 0) == ("-> " not in done.stdout)

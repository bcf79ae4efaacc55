"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import subprocess
import sys

import pytest
from helpers.mpijob import ROOT, environment

from nnmpi import doctor
from nnmpi.doctor import Finding


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


def test_problems_are_counted_and_each_has_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checks = {"one": lambda: Finding("good"), "two": lambda: Finding("bad", "do this")}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert doctor.main([]) == 1
    assert capsys.readouterr().out == "one  good\ntwo  bad\n     -> do this\n1 problem found\n"
    monkeypatch.setattr(doctor, "CHECKS", {"one": checks["one"]})
    assert doctor.main([]) == 0
    assert doctor.main(["--loud"]) == 2
    assert capsys.readouterr().err == "nnmpi.doctor: unrecognized arguments: --loud\n"


@pytest.mark.parametrize(
    ("done", "says"),
    [
        ((0, "2 2 False Open MPI v5"), ""),
        ((1, "mpirun refuses to run as root"), "export OMPI_ALLOW_RUN_AS_ROOT=1"),
        ((1, "OSError: no route"), "two ranks failed (OSError: no rou"),
        ((0, "1 1 False Open MPI v5"), "mpirun and the library of mpi4py differ"),
    ],
)
def test_what_mpirun_does(
    done: tuple[int, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bin/mpirun")
    monkeypatch.setattr(doctor, "_try", lambda *_: done)
    found = doctor.launcher()
    assert says in found.problem
    assert bool(says) == bool(found.problem)


def test_no_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "source .venv/bin/activate" in doctor.launcher().problem

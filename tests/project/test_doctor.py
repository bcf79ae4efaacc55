"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment

from nnmpi import doctor
from nnmpi.doctor import Finding

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
        ((0, "2 2"), ""),
        ((1, "mpirun refuses to run as root"), "export OMPI_ALLOW_RUN_AS_ROOT=1"),
        ((1, "OSError: no route"), "two ranks failed (OSError: no rou"),
        ((0, "1 1"), "mpirun and the library of mpi4py differ"),
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


def test_the_docs_remove_what_the_doctor_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory of jobs of Open MPI, old and new, and of MPICH; of other programs none."""
    names = "sm_segment.vm.0.e1.0", "vader_segment.vm.0.e1.1", "osc_sm.vm.e1.2", "mpich_shm_91d1_0"
    others = "sm_segments", "my_segment.1", "mpich", "ompi.99"
    for name in (*names, *others):
        (tmp_path / name).write_bytes(bytes(500_000))
    page = (ROOT / "docs/communicators.md").read_text(encoding="utf-8")
    command = page[page.index("`find /dev/shm ") + 1 :].partition("`")[0]
    assert "-user $USER" in command
    command = command.replace("$USER", str(os.getuid())).replace("/dev/shm", str(tmp_path))
    monkeypatch.setattr(doctor, "SHARED", tmp_path)
    assert doctor.leftovers().text.startswith("4 segments, 2 MB; where no job of yours runs")
    subprocess.run(command, shell=True, check=True)
    assert {path.name for path in tmp_path.iterdir()} == {*others}
    assert doctor.leftovers().text == "0 segments, 0 MB"

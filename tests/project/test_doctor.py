"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from helpers.mpijob import environment

from nnmpi import blas, doctor
from nnmpi.doctor import Done, Finding


def test_the_command_looks_at_everything_on_this_machine() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nnmpi.doctor"],
        check=False,
        capture_output=True,
        text=True,
        env=environment({}),
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


def test_kernels_that_were_chosen_badly_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setattr(doctor, "_product_seconds", lambda tuned, unset=False: 1 if unset else 2)
    assert "OPENBLAS_CORETYPE=Prescott makes products 2.0 times as slow: unset it" in (
        doctor.blas_kernels().problem
    )
    monkeypatch.setattr(doctor, "_product_seconds", lambda tuned, unset=False: 1)
    assert doctor.blas_kernels().problem == ""


def test_the_child_that_times_a_product_works() -> None:
    assert 0 < doctor._product_seconds(tuned=True, unset=True) < 60


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4096")
    assert f"set {blas.cores(1)}" in doctor.blas_threads().problem
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert doctor.blas_threads() == Finding("1 by OPENBLAS_NUM_THREADS")


def test_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (99.0, 0, 0))
    assert "distrust timings" in doctor.cores().problem
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0, 0))
    assert doctor.cores().problem == ""


@pytest.mark.parametrize(
    ("done", "says"),
    [
        (Done(0, "2 2", ""), ""),
        (Done(1, "", "mpirun refuses to run as root"), "export OMPI_ALLOW_RUN_AS_ROOT=1"),
        (Done(1, "", "Traceback\n  File\nOSError: no route"), "two ranks failed (OSError: no rou"),
        (Done(124, "", "no answer within 30 seconds"), "(no answer within 30 seconds)"),
        (Done(0, "1 1", ""), "mpirun and the library of mpi4py differ"),
    ],
)
def test_what_mpirun_does(done: Done, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bin/mpirun")
    monkeypatch.setattr(doctor, "_try", lambda *_: done)
    found = doctor.launcher()
    assert says in found.problem
    assert bool(says) == bool(found.problem)


def test_no_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "source .venv/bin/activate" in doctor.launcher().problem


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(1 << 20))
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert "docker --shm-size" in doctor.shared_memory().problem


def test_a_process_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SECONDS", 0.2)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert doctor._try(sleeps) == Done(124, "", "no answer within 0.2 seconds")
    assert doctor._try(["/no/such/program"]).status == 127


def test_a_closed_pipe_a_full_disk_and_ctrl_c_leave_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raising(error: BaseException) -> Finding:
        raise error

    monkeypatch.setattr(doctor, "CHECKS", {"one": lambda: raising(BrokenPipeError())})
    assert (doctor.main([]), capsys.readouterr().err) == (1, "")
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(doctor, "CHECKS", {"one": lambda: raising(full)})
    line = "nnmpi.doctor: [Errno 28] No space left on device\n"
    assert (doctor.main([]), capsys.readouterr().err) == (1, line)
    monkeypatch.setattr(doctor, "CHECKS", {"one": lambda: raising(KeyboardInterrupt())})
    assert (doctor.main([]), capsys.readouterr().err) == (130, "nnmpi.doctor: interrupted\n")

"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import mmap
import os
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment

from nnmpi import doctor, native
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


def test_cores_and_what_computes_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(doctor.blas, "cores", lambda ranks: 2)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (4.0, 0.0, 0.0))
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    monkeypatch.setattr(doctor.blas, "threads", lambda: 1)
    assert ", 1 thread by OPENBLAS_NUM_THREADS;" in doctor.cores().text
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    text = doctor.cores().text
    assert "2 for this process (load 4.0: they are shared with other programs); BLAS" in text
    assert ", 1 thread, of large linear layers alone up to 2;" in text
    monkeypatch.setattr(native, "lack", lambda: "compiled kernels: none")
    assert doctor.cores().problem == "compiled kernels: none"


@pytest.mark.parametrize(("library", "hints"), [("mpirun (Open MPI) 5.0", 1), ("HYDRA", 0)])
def test_ranks_beyond_the_cores_have_a_hint(
    library: str, hints: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/bin/mpirun")
    monkeypatch.setattr(doctor, "_try", lambda c: (0, library if "--version" in c else "2 2"))
    assert doctor.launcher().text.count("mpirun --oversubscribe") == hints


def test_no_mpirun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert "source .venv/bin/activate" in doctor.launcher().problem


def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage(1 << 20))
    monkeypatch.setattr(Path, "is_dir", lambda self: True)
    assert "docker --shm-size" in doctor.shared_memory().problem


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="it reads /proc of Linux")
def test_what_killed_jobs_left_is_told_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not what a process maps or runs as, what is new, or what is no file of MPI."""
    mapped, new, other = "sm_segment.vm.0.e050001.0", "mpich_shm_120b616c_0", "sm_segments"
    dead = {"sm_segment.vm.0.e050001.1", "mpich_shm_91d1236_0", "ompi.99999999"}
    kept = {mapped, new, other, f"ompi.{os.getpid()}", "ompi.vm.0"}
    for name in dead | kept:
        path = tmp_path / name
        if name.startswith("ompi."):
            (path / "0").mkdir(parents=True)
        else:
            path.write_bytes(bytes(5000))
        if name != new:
            os.utime(path, (0, 0))
    monkeypatch.setattr(doctor, "SHARED", tmp_path)
    monkeypatch.setattr(doctor.tempfile, "gettempdir", lambda: str(tmp_path))
    with (tmp_path / mapped).open("r+b") as file, mmap.mmap(file.fileno(), 0):
        assert {path.name for path in doctor.left_behind(tmp_path, tmp_path)} == dead
        assert doctor.leftovers().text.startswith(f"3 in {tmp_path}, 0 MB")
        assert "--clean" in doctor.leftovers().problem
        monkeypatch.setattr(doctor, "CHECKS", {"left": doctor.leftovers})
        assert doctor.main(["--clean"]) == 0
    assert capsys.readouterr().out.startswith("removed 3 of jobs that were killed\nleft  none\n")
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_what_a_process_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = "import sys; sys.exit('Traceback\\n  File\\nOSError: no route')"
    assert doctor._try([sys.executable, "-c", fails]) == (1, "OSError: no route")
    assert doctor._try([sys.executable, "-c", "print(2)"]) == (0, "2")
    assert doctor._try(["/no/such/program"])[0] == 127
    monkeypatch.setattr(doctor, "SECONDS", 0.2)
    sleeps = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert doctor._try(sleeps) == (124, "no answer within 0.2 seconds")


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (BrokenPipeError(), 1, ""),
        (OSError(28, "No space left on device"), 1, "cannot write output: No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_ends_the_command_leaves_no_traceback(
    error: BaseException,
    status: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails() -> Finding:
        raise error

    monkeypatch.setattr(doctor, "CHECKS", {"one": fails})
    line = f"nnmpi.doctor: {says}\n" if says else ""
    assert (doctor.main([]), capsys.readouterr().err) == (status, line)

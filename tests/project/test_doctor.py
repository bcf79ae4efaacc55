"""python -m nnmpi.doctor: what it finds here, and what it says of each problem."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.programs import python

from nnmpi import addons
from nnmpi.addons.doctor import command as doctor
from nnmpi.addons.doctor import installed
from nnmpi.addons.doctor.installed import Launcher, Library


def test_the_command_looks_at_everything_on_this_machine() -> None:
    done = python("-m", "nnmpi.doctor")
    assert done.err == ""
    assert "two ranks found each other" in done.out
    file = Path(shutil.which("mpirun") or "")
    version = subprocess.run([file, "--version"], check=True, capture_output=True, text=True).stdout
    first = installed.launcher_at(file, version)
    assert f"), {first.version}; two ranks" in done.out
    lines = [line for line in done.out.splitlines() if not line.startswith(" ")]
    assert [name for name in doctor.CHECKS if not any(x.startswith(name) for x in lines)] == []
    assert (lines[-1] == "all is well") == (done.status == 0) == ("-> " not in done.out)


LIBRARY = Library(Path("/usr/lib/libmpi.so.40"), "Open MPI")
OWN = Launcher(Path("/usr/bin/mpirun.openmpi"), "Open MPI", "Open MPI 4.1.4")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """A machine with this library and launcher, and another mpirun first on PATH: what mpi4py
    loads, and what two ranks print."""
    first = tmp_path / "mpirun"
    first.touch()
    mine = OWN._replace(path=tmp_path / "mpirun.openmpi")
    mine.path.touch()
    said: dict[str, Any] = {"load": (1, "cannot load"), "ranks": (0, "2 2 False"), "own": mine}
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path="": str(first))
    monkeypatch.setattr(doctor, "_libraries", lambda: {LIBRARY: mine})

    def load(settings: dict[str, str]) -> tuple[int, str]:
        return (0, f"Open MPI v4.1.4;{LIBRARY.path}") if settings else said["load"]

    monkeypatch.setattr(doctor, "_load", load)
    monkeypatch.setattr(doctor, "_two_ranks", lambda *options: said["ranks"])
    monkeypatch.setattr(doctor, "_version", lambda file: "HYDRA build details:\n Version: 4.0.2")
    return said


def test_a_library_that_mpi4py_does_not_find_is_told_with_its_command(machine: Any) -> None:
    text, problem = doctor.library()
    assert text == (
        "none, one rank only (cannot load); not loaded: Open MPI, /usr/lib/libmpi.so.40"
    )
    assert problem.startswith(
        "for Open MPI v4.1.4: export MPI4PY_LIBMPI=/usr/lib/libmpi.so.40; start ranks by "
    )
    text, problem = doctor.launcher()
    assert text.endswith("MPICH 4.0.2; no ranks were started, since mpi4py loads no library")
    assert problem == ""


def test_the_mpirun_of_another_library_is_told_with_the_right_one(machine: Any) -> None:
    machine.update(load=(0, f"Open MPI v4.1.4;{LIBRARY.path}"), ranks=(1, "MPI sees only this one"))
    text, problem = doctor.launcher()
    assert text.endswith(f"MPICH 4.0.2; the library's own is {machine['own']}")
    assert problem == f"two ranks failed (MPI sees only this one): start ranks by {machine['own']}"


def test_the_frame_of_a_message_is_not_told_for_it() -> None:
    framed = "import sys; sys.exit('-' * 74 + '\\nnot enough slots\\n' + '-' * 74)"
    assert doctor._try([sys.executable, "-c", framed]) == (1, "not enough slots")


def test_ranks_on_one_core_are_a_problem(machine: Any) -> None:
    line = "2 ranks share core 1 of node7"
    machine.update(load=(0, "Open MPI v4.1.4;/x"), ranks=(0, f"2 2 False;{line};other"))
    text, problem = doctor.launcher()
    assert text.endswith("; two ranks found each other, and share memory")
    assert problem.splitlines() == [line, "other"]


@pytest.mark.parametrize("outliving", [{}, {"ulfm": "nnmpi.addons.recovery.ulfm.start"}])
def test_it_recommends_ulfm_where_nnmpi_can_use_it(
    outliving: dict[str, str], machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addons, "table", {"outliving": outliving}.__getitem__)
    text, problem = doctor.fault_tolerance()
    assert ("ulfm" in text) == bool(outliving)
    assert "the job ends, and --resume continues" in text
    assert problem == ""


def test_what_it_says_stands_in_a_wheel() -> None:
    """No file of a checkout, which a user of a wheel does not have."""
    source = Path(doctor.__file__).read_text(encoding="utf-8")
    assert not re.search(r"docs/|scripts/|\.venv|pip install '?\.", source)

"""Starts ranks under mpirun, as a user would, and ends them all if they take too long."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
MPICH = os.environ.get("NNMPI_TEST_MPICH", "")
MPIS = [
    pytest.param(sys.executable, id="this MPI"),
    pytest.param(
        MPICH,
        id="MPICH",
        marks=pytest.mark.skipif(not MPICH, reason="NNMPI_TEST_MPICH names no Python with MPICH"),
    ),
]
"""The Pythons of the MPI libraries that are here, as parameters of a test."""

NOT_STARTED = "PMIx server's listener thread failed to start"
"""What the launcher of Open MPI prints where a machine has no time for it; no rank runs then."""


class Ended(NamedTuple):
    """How a job ended and what its ranks printed. `status` is None if it had to be killed."""

    status: int | None
    out: str
    err: str


UNASKED = re.compile(r"^(\[warn\] Epoll|rank \d+ waits in fit ).*\n", re.MULTILINE)
"""What is said now and then: by the library of events of Open MPI where a rank was killed, and by
nnmpi where ranks begin to train a second apart, as on a busy machine."""


def run(
    ranks: int,
    *arguments: str | os.PathLike[str],
    timeout: float = 200,
    env: Mapping[str, str] | None = None,
    python: str = sys.executable,
    fault_tolerant: bool = False,
    chaos: int | None = None,
    patient: bool = False,
) -> Ended:
    """Runs `python *arguments` on so many ranks, with `env` added to the environment.

    If it is to be fault tolerant, the test is skipped where the launcher cannot do that.

    With a seed `chaos` operations of MPI begin and complete late: see helpers/chaos.py. With
    `patient` NNMPI_TIMEOUT is not for the start of ranks: see helpers/patient.py.

    After `timeout` seconds everything that was started is killed, and `status` is None.

    A job that the launcher could not start, as happens under heavy load, is started once more.
    """
    own = ulfm(python) if fault_tolerant else []
    through: tuple[str, ...] = ()
    env = dict(env or {})
    if chaos is not None or patient:
        through = "-m", "helpers.patient" if patient else "helpers.chaos"
        path = (ROOT, ROOT / "tests", os.environ.get("PYTHONPATH", ""))
        env |= {"NNMPI_CHAOS": str(chaos), "PYTHONPATH": os.pathsep.join(map(str, path))}
    ranked = [*launcher(python), *own, "-n", str(ranks), python, *through]
    ranked += map(os.fspath, arguments)
    ended = outcome_of(ranked, environment(env), timeout)
    if NOT_STARTED in ended.err:
        print(f"started once more: the launcher said\n{ended.err}", file=sys.stderr)
        ended = outcome_of(ranked, environment(env), timeout)
    return ended


def outcome_of(
    command: Sequence[str | os.PathLike[str]],
    env: Mapping[str, str],
    timeout: float = 200,
    folder: Path | None = None,
) -> Ended:
    """How a command ended that was started in a folder, by default in this one."""
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=env,
        start_new_session=True,
    ) as job:
        try:
            out, err = job.communicate(timeout=timeout)
            return Ended(job.returncode, out, UNASKED.sub("", err))
        except subprocess.TimeoutExpired:
            kill(job)
            return Ended(None, *job.communicate())
        except BaseException:  # Ctrl-C, or pytest's own time limit
            kill(job)
            raise


@cache
def launcher(python: str) -> list[str]:
    """The mpirun or mpiexec that belongs to this Python, or else the first on PATH."""
    if "OMPI_COMM_WORLD_SIZE" in os.environ or "PMI_SIZE" in os.environ:
        pytest.skip("this is a job of mpirun already: it cannot start another")
    for folder in (os.path.dirname(python), None):
        for name in ("mpirun", "mpiexec"):
            if found := shutil.which(name, path=folder):
                outcome = subprocess.run([found, "--version"], capture_output=True, check=True)
                return [found, "--oversubscribe"] if b"Open MPI" in outcome.stdout else [found]
    pytest.skip("there is no mpirun beside this Python or on PATH")


def ulfm(python: str) -> list[str]:
    """The options of a launcher whose jobs go on when a rank is killed."""
    if "--oversubscribe" not in launcher(python):
        pytest.skip("jobs of this launcher end with their first rank that is killed: no ULFM")
    return ["--with-ft", "ulfm"]


def environment(added: Mapping[str, str]) -> dict[str, str]:
    """That of this process, what Open MPI needs as root, and one thread a rank.

    Ranks that wait yield their core. By itself Open MPI does that only where ranks outnumber cores:
    it does not know of tests that run at the same time.
    """
    path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    own = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",  # MPICH's, which sleeps
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(path),
    }
    watched = ("NNMPI_DEBUG", "NNMPI_TIMEOUT")
    inherited = {k: v for k, v in os.environ.items() if k not in watched}
    return {**inherited, **own, **added}


def kill(job: subprocess.Popen[str]) -> None:
    """The launcher and its ranks. Open MPI gives each rank a process group of its own."""
    ranks = descendants(job.pid)
    job.terminate()
    with suppress(subprocess.TimeoutExpired):
        job.wait(5)
    for process in (job.pid, *ranks):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def descendants(parent: int) -> list[int]:
    """The processes that were started by one, and by those."""
    if shutil.which("ps") is None:
        return []
    outcome = subprocess.run(
        ["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True
    )
    pairs = [tuple(map(int, line.split())) for line in outcome.stdout.splitlines()]
    found = [parent]
    for process in found:  # grows meanwhile
        found += [child for child, of in pairs if of == process]
    return found[1:]

"""Grades adapters: starts workers, waits for none longer than a limit, and names faults."""

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, NamedTuple

from classroom.check import Check, Finding, checks_of
from classroom.remote import environment
from classroom.worker import LOADING, Job, Row

SILENCE = 60.0  # seconds without a result, beyond the deadline: mpirun starts slowly under load
END = 2.0  # seconds in which mpirun ends its ranks
MANY_RANKS = {  # more of them than cores, which yield their core when they wait
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


class Result(NamedTuple):
    """A check, the numbers of ranks it ran on, and the first fault on these; "" if none."""

    check: Check
    ranks: tuple[int, ...]
    fault: str

    def row(self) -> dict[str, object]:
        """The result by the names that Gradescope uses."""
        name, points, kind, *_ = self.check
        passed = f"passed on {', '.join(map(str, self.ranks))} rank{'s' * (self.ranks != (1,))}"
        score = 0 if self.fault else points
        output = self.fault or passed
        return {"name": name, "kind": kind, "score": score, "max_score": points, "output": output}


class How(NamedTuple):
    """How to run checks: all of them, or only some; ranks as threads, or started by a command.

    only        the name of a check
    ranks       a number of ranks
    launcher    the command that starts ranks, up to their number, as "mpirun -n"
    deadline    seconds for one check on one number of ranks
    limit       seconds for all checks
    """

    only: str = ""
    ranks: int = 0
    launcher: str = ""
    deadline: float = 30.0
    limit: float = 300.0


class Grades(NamedTuple):
    """The results of all checks; `not_loaded` says why adapters.py cannot be loaded, or is ""."""

    results: list[Result]
    not_loaded: str = ""


def files_of(assignment: str, seed: int) -> dict[str, str]:
    """The texts of further files that a student gets, by name, if `checks.py` has a `files`."""
    files: Callable[[int], dict[str, str]] = getattr(checks_of(assignment), "files", lambda _: {})
    return files(seed)


def grade(assignment: str, adapters: Path, seed: int, how: How) -> Grades:
    """The results of the checks of an assignment for a student's adapters.py."""
    checks: tuple[Check, ...] = checks_of(assignment).CHECKS
    until = time.monotonic() + how.limit
    chosen = [(i, c) for i, c in enumerate(checks) if how.only in ("", c.name)]
    cases = [(i, n) for i, c in chosen for n in c.ranks if how.ranks in (0, n)]
    sizes = sorted({n for _, n in cases}) if how.launcher else [0]
    faults, not_loaded = dict[int, str](), ""
    if how.launcher and not shutil.which(command := shlex.split(how.launcher)[0]):
        raise ValueError(f"there is no {command}: name the command that starts ranks after --mpi")
    for size in sizes:
        left = [case for case in cases if size in (0, case[1]) and case[0] not in faults]
        while left and not not_loaded:
            if time.monotonic() > until:
                faults |= {i: f"not run: {_over(how.limit)}" for i, _ in left}
                break
            rows, status = _outcome(assignment, adapters, seed, left, size, how, until)
            if not rows and time.monotonic() < until:
                raise ValueError(f"{how.launcher or sys.executable} has started no ranks: {status}")
            not_loaded = unloaded(rows)
            left = blame(left, rows, status, faults)
    sizes_of = {i: tuple(n for k, n in cases if k == i) for i, _ in cases}
    fault = "not run" if not_loaded else ""
    results = [Result(checks[i], n, fault or faults.get(i, "")) for i, n in sizes_of.items()]
    return Grades(results, not_loaded)


def _outcome(
    assignment: str,
    adapters: Path,
    seed: int,
    cases: list[tuple[int, int]],
    size: int,
    how: How,
    until: float,
) -> tuple[list[Row], str]:
    """The rows of a worker, and how it ended."""
    with TemporaryDirectory() as folder:
        request, results, key = Path(folder, "job"), Path(folder, "results"), secrets.token_hex()
        places = str(adapters), seed, cases, str(results), key
        job = Job(assignment, *places, how.deadline, size > 0)
        request.write_text(json.dumps(job._asdict()))
        with open(results, "xb+") as file:  # stays open when nobody finds its name any more
            launcher = f"{how.launcher} {size}" if size else ""
            status = _work(request, file, launcher, until, how.deadline + SILENCE)
            status = status if time.monotonic() < until else _over(how.limit)
            file.seek(0)
            rows = [Row.read(line, key) for line in file.read().splitlines()]
    return [row for row in rows if row is not None], status


def _over(limit: float) -> str:
    return f"all checks together have taken {limit:g} s (--limit)"


def _work(request: Path, results: BinaryIO, launcher: str, until: float, silence: float) -> str:
    """Runs a worker, and returns how it ended; ends it if it is silent, or when the time is up."""
    command = [*shlex.split(launcher), sys.executable, "-P", "-m", "classroom.worker", str(request)]
    env = {**(MANY_RANKS if launcher else {}), **environment()}
    worker = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=2, env=env, start_new_session=True
    )
    size, silent = 0, time.monotonic() + silence
    try:
        while worker.poll() is None:
            time.sleep(0.02)
            now = time.monotonic()
            if (grown := os.fstat(results.fileno()).st_size) > size:
                size, silent = grown, now + silence
            if now > min(silent, until):
                return f"no rank has reported for {silence:g} s"
        return f"the process of the ranks ended with status {worker.returncode}"
    finally:
        _end(worker)


def _end(worker: "subprocess.Popen[bytes]") -> None:
    """Ends a worker, and what it has started."""
    if worker.poll() is None:
        worker.terminate()  # mpirun then ends its ranks
        with suppress(subprocess.TimeoutExpired):
            worker.wait(END)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def unloaded(rows: list[Row]) -> str:
    """Why adapters.py cannot be loaded, "" if it can."""
    wrong = [row for row in rows if row.case == LOADING and row.text]
    if not wrong:
        return ""
    return f"adapters.py is not loaded: it {wrong[0].text}" if wrong[0].hangs else wrong[0].text


def blame(
    cases: list[tuple[int, int]], rows: list[Row], status: str, faults: dict[int, str]
) -> list[tuple[int, int]]:
    """Adds the fault of each check that failed, and returns the cases that remain to be run."""
    left, blamed = list[tuple[int, int]](), len(faults)
    for number, (check, size) in enumerate(cases):
        of_case = [row for row in rows if row.case == number]
        ended = {row.rank for row in of_case if not row.text}
        if check in faults or len(ended) == size:
            continue
        fault = "; ".join(_faults(of_case))
        if fault:
            faults[check] = f"{size} rank{'s' * (size > 1)}: {fault}"
        else:
            left.append((check, size))
    if left and len(faults) == blamed:
        check, size = left[0]
        faults[check] = f"{size} rank{'s' * (size > 1)}: {status}"
    return [case for case in left if case[0] not in faults]


def _faults(rows: list[Row]) -> Iterator[str]:
    """What is wrong first in a case, and where ranks wait."""
    wrong = [Finding(row.rank, row.text, row.step) for row in rows if row.text and not row.hangs]
    hanging = sorted((row.rank, row.text) for row in rows if row.hangs)
    waiting = [f"rank {rank} {text}" for rank, text in hanging]
    if wrong:
        yield str(min(wrong, key=lambda finding: finding.order))
    if waiting:
        yield f"hangs: {'; '.join(waiting)}"

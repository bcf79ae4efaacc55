"""Grades adapters: starts workers, waits for none longer than a deadline, and names faults."""

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import nnmpi
from classroom.check import COURSE, Check, Finding, checks_of
from classroom.worker import Job, Row

SILENCE = 60.0  # seconds without a result, beyond the deadline: mpirun starts slowly under load
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
    """

    only: str = ""
    ranks: int = 0
    launcher: str = ""
    deadline: float = 30.0


def files_of(assignment: str, seed: int) -> dict[str, str]:
    """The texts of further files that a student gets, by name, if `checks.py` has a `files`."""
    files: Callable[[int], dict[str, str]] = getattr(checks_of(assignment), "files", lambda _: {})
    return files(seed)


def grade(assignment: str, adapters: Path, seed: int, how: How) -> list[Result]:
    """The results of the checks of an assignment for a student's adapters.py."""
    checks: tuple[Check, ...] = checks_of(assignment).CHECKS
    chosen = [(i, c) for i, c in enumerate(checks) if how.only in ("", c.name)]
    cases = [(i, n) for i, c in chosen for n in c.ranks if how.ranks in (0, n)]
    sizes = sorted({n for _, n in cases}) if how.launcher else [0]
    faults = dict[int, str]()
    if how.launcher and not shutil.which(command := shlex.split(how.launcher)[0]):
        raise ValueError(f"there is no {command}: name the command that starts ranks after --mpi")
    for size in sizes:
        left = [case for case in cases if size in (0, case[1]) and case[0] not in faults]
        while left:
            with TemporaryDirectory() as folder:
                results = str(Path(folder) / "results")
                job = Job(assignment, str(adapters), seed, left, results, how.deadline, size > 0)
                status = _work(job, Path(folder), f"{how.launcher} {size}" if size else "")
                rows = [Row(*json.loads(x)) for x in Path(results).read_text().splitlines()]
            if not rows:
                raise ValueError(f"{how.launcher or sys.executable} has started no ranks: {status}")
            left = blame(left, rows, status, faults)
    sizes_of = {i: tuple(n for k, n in cases if k == i) for i, _ in cases}
    return [Result(checks[i], ranks, faults.get(i, "")) for i, ranks in sizes_of.items()]


def _work(job: Job, folder: Path, launcher: str) -> str:
    """Runs a worker, and returns how it ended; kills it if it is silent for too long."""
    request, results = folder / "job", Path(job.results)
    request.write_text(json.dumps(job._asdict()))
    results.touch()
    command = [*shlex.split(launcher), sys.executable, "-P", "-m", "classroom.worker", str(request)]
    env = {**(MANY_RANKS if launcher else {}), **os.environ}
    path = str(COURSE), str(Path(nnmpi.__file__).parents[1]), env.get("PYTHONPATH")
    env["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, env=env) as worker:
        size, until = 0, time.monotonic() + job.deadline + SILENCE
        while worker.poll() is None:
            time.sleep(0.02)
            if (grown := results.stat().st_size) > size:
                size, until = grown, time.monotonic() + job.deadline + SILENCE
            elif time.monotonic() > until:
                worker.terminate()  # mpirun then ends its ranks
                time.sleep(1.0)
                worker.kill()
                return f"no rank has reported for {job.deadline + SILENCE:g} s"
        return f"the process of the ranks ended with status {worker.returncode}"


def blame(
    cases: list[tuple[int, int]], rows: list[Row], status: str, faults: dict[int, str]
) -> list[tuple[int, int]]:
    """Adds the fault of each check that failed, and returns the cases that remain to be run."""
    left, blamed = list[tuple[int, int]](), len(faults)
    for number, (check, size) in enumerate(cases):
        of_case = [row for row in rows if row.case == number]
        wrong = [Finding(r.rank, r.text, r.step) for r in of_case if r.text and not r.hangs]
        waiting = [f"rank {r.rank} {r.text}" for r in of_case if r.hangs]
        if check in faults or (len(of_case) == size and not wrong and not waiting):
            continue
        if not wrong and not waiting:
            left.append((check, size))
            continue
        texts = [str(min(wrong, key=lambda finding: finding.order))] if wrong else []
        if waiting:
            texts.append(f"hangs: {'; '.join(waiting)}")
        fault = "; ".join(texts)
        faults[check] = f"{size} rank{'s' * (size > 1)}: {fault}"
    if left and len(faults) == blamed:
        faults[left[0][0]] = f"{left[0][1]} ranks: {status}"
    return [case for case in left if case[0] not in faults]

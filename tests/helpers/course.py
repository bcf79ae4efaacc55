"""Solutions of the course, and the faults of adapters whose ranks are threads of this process."""

from pathlib import Path

from classroom import Check
from classroom.check import COURSE, checks_of
from classroom.grading import blame, unloaded
from classroom.remote import StudentProcess
from classroom.worker import Job, Row, Worker

SEED = 7


def solution(assignment: str) -> Path:
    return COURSE / "solutions" / f"{assignment}.py"


def faults(
    assignment: str, adapters: Path, process: StudentProcess, only: str = ""
) -> dict[str, str]:
    """The faults of the checks by name, from ranks that are threads of this process."""
    checks: tuple[Check, ...] = checks_of(assignment).CHECKS
    cases = [(i, n) for i, c in enumerate(checks) for n in c.ranks if only in ("", c.name)]
    job, rows = Job(assignment, str(adapters), SEED, cases, "", "", 60.0, False), list[Row]()
    Worker(job, process, rows.append, None).run()
    by_number = dict[int, str]()
    if fault := unloaded(rows):
        return {check.name: fault for check in checks}
    assert blame(cases, rows, "not run", by_number) == []
    return {checks[i].name: fault for i, fault in by_number.items()}

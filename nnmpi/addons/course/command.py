"""The command `nnmpi course`: hands out assignments, and grades them.

    nnmpi course new all-reduce DIR --student NAME    writes README.md, adapters.py, course.json
    nnmpi course check DIR                            runs the checks, and prints points and faults

Exit status of `check`: 0 for all points, else 1.
"""

import argparse
import importlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from nnmpi.options import cli
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import content, parsed, refusing_others

PACKED = Path(__file__).parents[2] / "assignments"
COURSE = PACKED if PACKED.is_dir() else Path(__file__).parents[3] / "course"
"""The folder with the assignments and their grader: `assignments` if installed, or `course`."""

HANDED_OUT, RECORD = ("README.md", "adapters.py"), "course.json"
MOST_BYTES = 1_000_000  # bytes in adapters.py


def parser() -> cli.Parser:
    """The parser of the command line."""
    p = cli.Parser("nnmpi.course", description="Hand out assignments, and grade them.")
    commands = p.add_subparsers(dest="command", required=True, metavar="COMMAND")
    new_parser = commands.add_parser("new", help="write an assignment into a folder")
    new_parser.add_argument("assignment", choices=assignments())
    new_parser.add_argument("folder", metavar="DIR", type=Path)
    check_parser = commands.add_parser("check", help="grade the adapters.py of a folder")
    check_parser.add_argument("folder", metavar="DIR", type=Path)
    for sub, run, default in (
        (new_parser, new, "the name of DIR"),
        (check_parser, check, "the student of DIR/course.json"),
    ):
        sub.set_defaults(run=run)
        sub.add_argument("--student", metavar="NAME", help=f"whose numbers (default: {default})")
    _add_checking(check_parser)
    return p


def _add_checking(p: argparse.ArgumentParser) -> None:
    """Adds the options on which checks run, for how long, and how results are printed."""
    p.add_argument("--only", metavar="CHECK", default="", help="run the check of this name")
    p.add_argument("--ranks", type=int, default=0, help="run on this number of ranks alone")
    p.add_argument(
        "--mpi",
        nargs="?",
        const="mpirun -n",
        default="",
        metavar="COMMAND",
        help="ranks are processes, started by a command (mpirun -n); without it they are threads",
    )
    p.add_argument(
        "--deadline",
        type=float,
        default=30.0,
        metavar="SECONDS",
        help="seconds for a check on one number of ranks (30)",
    )
    p.add_argument(
        "--limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="seconds for all checks together; those that are left get no points (300)",
    )
    p.add_argument("--json", action="store_true", help="print the results as JSON")
    p.add_argument("--gradescope", metavar="FILE", type=Path, help="write a results.json")
    p.add_argument("--autolab", action="store_true", help="print Autolab's line of scores last")


def assignments() -> list[str]:
    """The names of all assignments."""
    return sorted(path.parent.name for path in COURSE.glob("*/checks.py"))


def new(given: argparse.Namespace) -> int:
    """Runs `new`: writes the files of an assignment, with numbers drawn from the student's name."""
    folder, student = given.folder, given.student or given.folder.resolve().name
    for name in (*HANDED_OUT, RECORD):
        if (folder / name).exists():
            raise ValueError(f"{shown(str(folder))} has a {name} already: name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    for name in HANDED_OUT:
        shutil.copyfile(COURSE / given.assignment / name, folder / name)
    facts = {"assignment": given.assignment, "student": student, "seed": seed_of(student)}
    of_student = _grader().files_of(given.assignment, seed_of(student))
    for name, text in {**of_student, RECORD: json.dumps(facts) + "\n"}.items():
        (folder / name).write_text(text)
    print(f"{folder}: the numbers are those of student {student} (--student names another)")
    print(f"read README.md, fill adapters.py, then run: nnmpi course check {folder}")
    return 0


def seed_of(student: str) -> int:
    """The seed of the random numbers in a student's assignment: a checksum of the name."""
    return crc32(student.encode())


def check(given: argparse.Namespace) -> int:
    """Runs the subcommand `check`: grades a folder, prints the points and what is wrong; returns 1
    unless all points are reached."""
    assignment, student = _record(given.folder / RECORD)
    adapters = (given.folder / "adapters.py").resolve()
    content(
        adapters, shown(str(adapters)), MOST_BYTES, "nnmpi course new makes one", "hand in your own"
    )
    for option in ("deadline", "limit"):
        if not getattr(given, option) > 0:
            raise ValueError(f"--{option} is {getattr(given, option)}: give seconds above 0")
    student, began = given.student or student, time.monotonic()
    grading = _grader()
    how = grading.How(given.only, given.ranks, given.mpi, given.deadline, given.limit)
    results, not_loaded = grading.grade(assignment, adapters, seed_of(student), how)
    if not results:
        name = f" {shown(given.only)}" if given.only else ""
        on_ranks = f" on {given.ranks} ranks" if given.ranks else ""
        missing = f"{assignment} has no check{name}{on_ranks}"
        raise ValueError(f"{missing}: README.md has their names and numbers of ranks")
    of_student = {"assignment": assignment, "student": student, "seed": seed_of(student)}
    _report(given, of_student, [r.row() for r in results], not_loaded, time.monotonic() - began)
    return int(any(r.fault for r in results))


def _grader() -> ModuleType:
    sys.path.insert(0, str(COURSE))
    return importlib.import_module("classroom.grading")


def _record(path: Path) -> tuple[str, str]:
    """Returns (assignment, student) of a course.json; raises ValueError for unusable files."""
    again = "make the folder by nnmpi course new"
    text = content(path, shown(str(path)), 10_000, again)
    with refusing_others(shown(str(path)), again):
        facts = parsed(json.loads, text)
        assignment, student = str(facts["assignment"]), str(facts["student"])
    if assignment not in assignments():
        raise ValueError(f"there is no assignment {shown(assignment)}: {', '.join(assignments())}")
    return assignment, student


def _report(
    given: argparse.Namespace,
    of_student: dict[str, object],
    rows: list[dict[str, Any]],
    not_loaded: str,
    seconds: float,
) -> None:
    """Prints the result of the checks as text or JSON, and writes it for Gradescope and Autolab on
    request.

    rows         the result of each check
    not_loaded   why the student's code could not be loaded, or ""
    """
    points, most = (sum(row[key] for row in rows) for key in ("score", "max_score"))
    if given.json:
        facts = {**of_student, "score": points, "max_score": most, "fault": not_loaded}
        print(json.dumps({**facts, "checks": rows}))
    else:
        print("{assignment} of {student}, seed {seed}".format(**of_student))
        for row in rows if not not_loaded else ():
            print("{score:4}/{max_score:<3} {name:28} {kind:7} {output}".format(**row))
        print(f"{points:4}/{most} points{f': {not_loaded}' * bool(not_loaded)}")
    if given.gradescope:
        tests = [
            {key: row[key] for key in ("name", "score", "max_score", "output")} for row in rows
        ]
        report = {"score": points, "execution_time": round(seconds, 1), "output": not_loaded}
        given.gradescope.write_text(json.dumps({**report, "tests": tests}) + "\n")
    if given.autolab:
        print(json.dumps({"scores": {row["name"]: row["score"] for row in rows}}))


def command(given: argparse.Namespace) -> int:
    """Runs the subcommand `new` or `check`, and returns its exit status."""
    run: Callable[[argparse.Namespace], int] = given.run
    return run(given)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    return cli.main(parser(), command, arguments)

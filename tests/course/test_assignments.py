"""Each assignment: its solution gets all points, each of its mutants is caught and named."""

import ast
import importlib.util
import json
import runpy
from pathlib import Path

import pytest
from helpers.mpijob import ROOT, environment, launcher

from classroom import Check, Mutant
from classroom.check import COURSE, checks_of
from classroom.grading import How, blame, grade
from classroom.worker import Job, Row, Worker
from nnmpi.course import assignments

SEED = 7
WRONG = runpy.run_path(str(ROOT / "scripts" / "wrong_solutions.py"))
SHOWN: dict[str, dict[str, str]] = WRONG["shown"](WRONG["PAGE"].read_text(encoding="utf-8"))
"""The faults in docs/wrong-solutions.md, by assignment and name; the script writes them."""


def solution(assignment: str) -> Path:
    return COURSE / "solutions" / f"{assignment}.py"


def mutants_of(assignment: str) -> dict[str, Mutant]:
    spec = importlib.util.spec_from_file_location("mutants", COURSE / assignment / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


MUTANTS = [(name, fault, m) for name in assignments() for fault, m in mutants_of(name).items()]


@pytest.fixture(autouse=True)
def _no_rank_waits_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNMPI_TIMEOUT", "20")


def faults(assignment: str, adapters: Path, folder: Path, only: str = "") -> dict[str, str]:
    """The faults of the checks by name, from ranks that are threads of this process."""
    checks: tuple[Check, ...] = checks_of(assignment).CHECKS
    cases = [(i, n) for i, c in enumerate(checks) for n in c.ranks if only in ("", c.name)]
    results = folder / "results"
    Worker(Job(assignment, str(adapters), SEED, cases, str(results), 60.0, False)).run()
    rows = [Row(*json.loads(line)) for line in results.read_text().splitlines()]
    by_number = dict[int, str]()
    assert blame(cases, rows, "not run", by_number) == []
    return {checks[i].name: fault for i, fault in by_number.items()}


@pytest.mark.parametrize("assignment", assignments())
def test_the_solution_gets_all_points(assignment: str, tmp_path: Path) -> None:
    assert faults(assignment, solution(assignment), tmp_path) == {}


@pytest.mark.parametrize("assignment", assignments())
def test_an_assignment_is_complete(assignment: str) -> None:
    checks: tuple[Check, ...] = checks_of(assignment).CHECKS
    assert sum(check.points for check in checks) == 100
    page = (COURSE / assignment / "README.md").read_text(encoding="utf-8")
    tree = ast.parse((COURSE / assignment / "adapters.py").read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    missing = [n for n in (*names, *(c.name for c in checks)) if f"`{n}" not in page]
    assert missing == []
    filled = ast.parse(solution(assignment).read_text(encoding="utf-8"))
    assert names <= {node.name for node in filled.body if hasattr(node, "name")}


def test_a_page_shows_wrong_solutions_of_each_assignment() -> None:
    assert {*SHOWN} == {*assignments()}
    assert min(map(len, SHOWN.values())) >= 2
    assert {(a, name) for a, names in SHOWN.items() for name in names} <= {m[:2] for m in MUTANTS}


@pytest.mark.parametrize(
    ("assignment", "name", "mutant"),
    [pytest.param(*row, id=f"{row[0]}: {row[1]}") for row in MUTANTS],
)
def test_a_mutant_is_caught(assignment: str, name: str, mutant: Mutant, tmp_path: Path) -> None:
    """And what a page shows of it is what is printed."""
    text = solution(assignment).read_text(encoding="utf-8")
    for old, new in mutant.edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    adapters = tmp_path / "adapters.py"
    adapters.write_text(text, encoding="utf-8")
    if "hangs" in mutant.says:  # ends the process of its ranks
        (result,) = grade(assignment, adapters, SEED, How(mutant.check))
        fault = result.fault
    else:
        fault = faults(assignment, adapters, tmp_path, mutant.check).get(mutant.check, "")
    print(fault)
    assert mutant.says in fault
    assert "Traceback" not in fault
    assert "the check itself failed" not in fault
    line = " ".join(f"{mutant.check}: {fault}".split())
    assert SHOWN[assignment].get(name, line) == line


def test_ranks_may_be_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    mpirun = " ".join([*launcher("python"), "-n"])
    how = How(ranks=3, launcher=mpirun)
    assert [r.fault for r in grade("all-reduce", solution("all-reduce"), SEED, how)] == [""] * 9
    text = solution("all-reduce").read_text(encoding="utf-8")
    wrong = text.replace("comm.recv(arrives, (r - 1) % p)", "comm.recv(arrives, (r + 1) % p)")
    assert wrong != text
    adapters = tmp_path / "adapters.py"
    adapters.write_text(wrong, encoding="utf-8")
    (result,) = grade("all-reduce", adapters, SEED, how._replace(only="ring sums", deadline=2.0))
    for rank in range(3):
        assert f"rank {rank} waits in irecv of 2 float64 from rank {(rank + 1) % 3}" in result.fault

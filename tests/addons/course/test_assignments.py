"""Each assignment: its solution gets all points, each of its mutants is caught and named."""

import ast
import importlib.util
import runpy
from pathlib import Path

import pytest
from helpers.course import SEED, faults, solution
from helpers.mpijob import ROOT, environment, launcher

from classroom import Check, Mutant
from classroom.check import COURSE, checks_of
from classroom.grading import How, grade
from classroom.remote import StudentProcess
from nnmpi.addons.course.command import assignments

WRONG = runpy.run_path(str(ROOT / "scripts" / "wrong_solutions.py"))
SHOWN: dict[str, dict[str, str]] = WRONG["shown"](WRONG["PAGE"].read_text(encoding="utf-8"))
"""The faults in course/wrong-solutions.md, by assignment and name; the script writes them."""


def mutants_of(assignment: str) -> dict[str, Mutant]:
    spec = importlib.util.spec_from_file_location("mutants", COURSE / assignment / "mutants.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.MUTANTS


MUTANTS = [(name, fault, m) for name in assignments() for fault, m in mutants_of(name).items()]


@pytest.mark.parametrize("assignment", assignments())
def test_the_solution_gets_all_points(assignment: str, process: StudentProcess) -> None:
    assert faults(assignment, solution(assignment), process) == {}


def test_an_optimizer_whose_class_has_slots_holds_its_moments(
    tmp_path: Path, process: StudentProcess
) -> None:
    slots = "comm values lr eps beta1 beta2 steps part m v"
    head = "class ShardedAdam:\n"
    text = solution("data-parallelism").read_text(encoding="utf-8")
    adapters = tmp_path / "adapters.py"
    slotted = text.replace(head, f"{head}    __slots__ = {slots.split()}\n")
    adapters.write_text(slotted, encoding="utf-8")
    assert slotted != text
    assert faults("data-parallelism", adapters, process, only="state") == {}


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


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("assignment", "name", "mutant"),
    [pytest.param(*row, id=f"{row[0]}: {row[1]}") for row in MUTANTS],
)
def test_a_mutant_is_caught(
    assignment: str, name: str, mutant: Mutant, process: StudentProcess, tmp_path: Path
) -> None:
    """And what a page shows of it is what is printed."""
    text = solution(assignment).read_text(encoding="utf-8")
    for old, new in mutant.edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    adapters = tmp_path / "adapters.py"
    adapters.write_text(text, encoding="utf-8")
    if "hangs" in mutant.says:  # ends the process of its ranks
        (result,) = grade(assignment, adapters, SEED, How(mutant.check)).results
        fault = result.fault
    else:
        fault = faults(assignment, adapters, process, mutant.check).get(mutant.check, "")
    print(fault)
    assert mutant.says in fault
    assert "Traceback" not in fault
    assert "the check itself failed" not in fault
    line = " ".join(f"{mutant.check}: {fault}".split())
    assert SHOWN[assignment].get(name, line) == line


def test_ranks_may_be_processes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_sample: bool
) -> None:
    """One check; with --all each of them."""
    for name, value in environment({}).items():
        monkeypatch.setenv(name, value)
    mpirun = " ".join([*launcher("python"), "-n"])
    how = How("ring sums" if is_sample else "", ranks=3, launcher=mpirun)
    results = grade("all-reduce", solution("all-reduce"), SEED, how).results
    assert [r.fault for r in results] == [""] * (1 if is_sample else 9)
    text = solution("all-reduce").read_text(encoding="utf-8")
    wrong = text.replace("comm.recv(arrives, (r - 1) % p)", "comm.recv(arrives, (r + 1) % p)")
    assert wrong != text
    adapters = tmp_path / "adapters.py"
    adapters.write_text(wrong, encoding="utf-8")
    how = how._replace(only="ring sums", deadline=2.0)
    (result,) = grade("all-reduce", adapters, SEED, how).results
    for rank in range(3):
        assert f"rank {rank} waits in recv of 2 float64 from rank {(rank + 1) % 3}" in result.fault


def test_a_right_crossover_has_its_points_though_the_tree_is_wrong(
    process: StudentProcess, tmp_path: Path
) -> None:
    text = solution("all-reduce").read_text(encoding="utf-8")
    adapters = tmp_path / "adapters.py"
    adapters.write_text(text.replace("levels = (p - 1).bit_length()\n    up", "levels = 1\n    up"))
    checks = "tree proved", "crossover", "cost by formula"
    wrong = [check for check in checks if faults("all-reduce", adapters, process, check)]
    assert wrong == ["tree proved"]


def test_sums_that_do_not_agree_are_not_said_to_be_rounded(
    process: StudentProcess, tmp_path: Path
) -> None:
    text = solution("all-reduce").read_text(encoding="utf-8")
    adapters = tmp_path / "adapters.py"
    adapters.write_text(
        text.replace("comm.recv(x, r - d)", "comm.recv(x, r - d)\n            x *= 2")
    )
    fault = faults("all-reduce", adapters, process, "same bits")["same bits"]
    assert "rank 1: tree: x[0] is" in fault
    assert "(all of it is 2 times too large)" in fault
    assert "let one rank add" not in fault

"""nnmpi/README.md leads through functions that a step enters; docs say what rooms do not import."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.mpijob import ROOT
from helpers.programs import python

PACKAGE = ROOT / "nnmpi"
WAY_IN = (PACKAGE / "README.md").read_text(encoding="utf-8")
PAGES = {
    name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("architecture", "internals")
}
MOST_WORDS = 30_000
"""The most words of README, docs/ and the way in, drawings included. Lower it when they fall."""

DOORS = {"backends", "cuda", "distributed", "distributions", "tokenize", "utils"}
"""Folders that have modules under PyTorch's names, or one that is run."""

ROOMS = sorted({path.parent.name for path in PACKAGE.glob("*/__*__.py")} - DOORS)
ABSENT = {
    room: re.findall(r"`([\w./]+)`", names)
    for room, names in re.findall(
        r"^\*\*`(\w+)/`\*\*(?:.(?!\n\n))*? imports\s+none\s+of\s(.*?)\n\n",
        PAGES["architecture"],
        re.S | re.M,
    )
}
"""By room, what the architecture says that it does not import: rooms end with a slash."""


def commands() -> tuple[str, str, str]:
    tape, zero = re.findall(r"^python (scripts/step_path\.py .*)$", WAY_IN, re.M)
    return tape, tape.replace(" --no-compile", ""), zero


@pytest.mark.parametrize("table", [0, 1, 2], ids=["tape", "replay", "zero"])
def test_the_way_in_leads_through_functions_of_a_step(table: int) -> None:
    run = python(*shlex.split(commands()[table]), folder=ROOT)
    entered = {
        file: {call.split()[0] for call in calls.split(", ")}
        for file, calls in re.findall(r"^(\S+\.py) +(.*)$", run.out, re.M)
    }
    assert run.status == 0, run.err
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|", re.split(r"\n\n(?=\|)", WAY_IN)[table + 1], re.M)
    assert rows
    for files, functions in rows:
        names = [entered.get(file, set()) for file in re.findall(r"`(.*?)`", files)]
        assert all(names), files
        for function in re.findall(r"`(.*?)`", functions):
            assert any(function in of_file for of_file in names), (files, function)


def test_the_way_in_is_short_and_has_a_sentence_for_each_room() -> None:
    assert len(re.findall(r"[^\s|]+", WAY_IN)) <= 400
    assert sorted(re.findall(r"^- `(\w+)/`: .*\.$", WAY_IN, re.M)) == ROOMS


def test_a_page_grows_only_if_another_shrinks() -> None:
    pages = (ROOT / "README.md", PACKAGE / "README.md", *(ROOT / "docs").glob("*.md"))
    words = sum(len(page.read_text(encoding="utf-8").split()) for page in pages)
    assert words <= MOST_WORDS


def imported(room: str) -> Iterator[tuple[str, str]]:
    """(name, file) of what the files of a room import, and of modules of NumPy that they use."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from ((alias.name, file) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                yield from ((f"{node.module}.{alias.name}", file) for alias in node.names)
            elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "np":
                yield f"numpy.{node.attr}", file


@pytest.mark.parametrize("room", sorted({*ROOMS} - {"addons"}))
def test_a_room_does_not_know_what_the_architecture_says(room: str) -> None:
    assert ABSENT[room]
    for name in ABSENT[room]:
        assert not name.endswith("/") or (PACKAGE / name).is_dir(), name
        module = f"nnmpi.{name[:-1]}" if name.endswith("/") else name
        found = [file for other, file in imported(room) if f"{other}.".startswith(f"{module}.")]
        assert not found, (room, name, found)


@pytest.mark.all_add_ons
def test_internals_name_files_and_functions_that_exist() -> None:
    """A file stands before its functions: `parallel/step_list/step.py` (`step_list`)."""
    text = re.sub(r"^```.*?^```", "", PAGES["internals"], flags=re.S | re.M)
    pairs = re.findall(r"`([\w/]+\.py)`(?: \(((?:`[\w.]+`(?:, )?)+)\))?", text)
    assert len(pairs) > 20
    for file, functions in pairs:
        names = {*_names(PACKAGE / file)}
        assert {*re.findall(r"`([\w.]+)`", functions)} <= names, (file, functions)


def _names(path: Path) -> Iterator[str]:
    """The functions, classes, methods and variables that a file defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}"
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield from (n.id for n in ast.walk(node) if isinstance(n, ast.Name))

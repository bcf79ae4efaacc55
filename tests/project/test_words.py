"""Docstrings begin with a noun or a verb and name files that exist; locals say what they hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.mpijob import ROOT

NO_SUBJECT = re.compile(r"\s*(These|Those|The same|That|Of|So many|Its|Itself|Nor|What)\b")
FILE = re.compile(r"`((?:\w+/)+\w+\.py)`")
"""A file in a folder, with any part of its path."""
PRONOUNS = {"found", "one", "own", "what", "there", "whole", "before", "now"}
MOST = 60  # functions with such a local, where it is the word


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / "nnmpi").rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def test_docstrings_have_a_subject() -> None:
    without = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value.value:.60}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if NO_SUBJECT.match(node.value.value)
    ]
    assert not without, "\n".join(without)


@pytest.mark.all_add_ons
def test_files_in_docstrings_exist() -> None:
    folders = ("nnmpi", "tests", "benchmarks")
    files = "".join(f"/{p.relative_to(ROOT)}\n" for f in folders for p in (ROOT / f).rglob("*.py"))
    gone = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {name}"
        for path, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        for name in FILE.findall(node.value.value)
        if f"/{name}\n" not in files
    ]
    assert not gone, "\n".join(gone)


def test_few_locals_are_pronouns() -> None:
    names = [
        f"{path.relative_to(ROOT)}: {function.name}: {name}"
        for path, tree in trees()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for name in sorted(PRONOUNS & {*stored(function)})
    ]
    assert len(names) <= MOST, "\n".join(names)


def stored(function: ast.FunctionDef) -> Iterator[str]:
    """The names of arguments and of what is assigned within a function."""
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if isinstance(node, ast.arg):
            yield node.arg

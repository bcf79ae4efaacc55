"""Docstrings begin with a noun or a verb, and locals say what they hold."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from helpers.mpijob import ROOT

NO_SUBJECT = re.compile(r"\s*(These|Those|The same|That|Of|So many|Its|Itself|Nor|What)\b")
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

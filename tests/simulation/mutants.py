"""Mutants: defects of nnmpi, a text each that replaces another, that cases have to find."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, NamedTuple

from simulation.case import Case
from simulation.draw import drawn_case
from simulation.layouts import LAYOUTS
from simulation.verdict import undisturbed, verdict

NOTE = "note_that_a_mutant_is_reached"


class Mutant(NamedTuple):
    """A function of which a text is replaced.

    function   its module and its name there
    layouts    where it has an effect; by default all
    killed_by  the case that finds it, or the name of the test that does where no case is known to
    equal      why nothing can find it: the defect changes nothing
    """

    name: str
    function: tuple[str, str]
    old: str
    new: str
    layouts: tuple[str, ...] = ()
    killed_by: Case | str = ""
    equal: str = ""


class Reached:
    """Counts how often a mutated text was reached."""

    def __init__(self) -> None:
        self.times = 0

    def note(self) -> None:
        self.times += 1


@contextmanager
def mutated(mutant: Mutant) -> Iterator[Reached]:
    """Lets the function of a mutant be defective within the block, wherever it is referred to."""
    function, reached = _function(*mutant.function), Reached()
    plain, space = function.__code__, function.__globals__
    function.__code__, space[NOTE] = _mutated_code(function, mutant), reached.note
    try:
        yield reached
    finally:
        function.__code__ = plain
        del space[NOTE]


class Search(NamedTuple):
    """What drawn cases have made of a mutant: the one that finds it, if any, how many were tried,
    and how many of them reached it."""

    case: Case | None
    tried: int
    reached: int


def first_kill(mutant: Mutant, seeds: int) -> Search:
    """The first of so many drawn cases that finds a mutant."""
    for name in mutant.layouts or LAYOUTS:
        undisturbed(name)  # without the defect
    found = 0
    for seed in range(seeds):
        case = drawn_case(seed, mutant.layouts)
        with mutated(mutant) as reached:
            is_bad = verdict(case).is_bad
        found += reached.times > 0
        if is_bad:
            return Search(case, seed + 1, found)
    return Search(None, seeds, found)


def _function(module: str, name: str) -> Any:
    """The plain function behind a method, a property or a wrapper."""
    owner: Any = importlib.import_module(module)
    for part in name.split("."):
        owner = inspect.getattr_static(owner, part)
    while not inspect.isfunction(owner) or hasattr(owner, "__wrapped__"):
        if isinstance(owner, property):
            owner = owner.fget
        else:
            owner = getattr(owner, "__wrapped__", None) or owner.__func__
    return owner


def _mutated_code(function: Any, mutant: Mutant) -> CodeType:
    """The code of a function with the text of a mutant replaced, which notes that it is reached."""
    text = textwrap.dedent(inspect.getsource(function))
    text = text[text.index("def ") :]  # without decorators
    before, _, _ = text.partition(mutant.old.partition("\n")[0])
    margin = "\n" + " " * (len(before) - len(before.rstrip(" ")))
    old, new = (side.replace("\n", margin) for side in (mutant.old, mutant.new))
    if text.count(old) != 1:
        raise ValueError(f"{mutant.name}: {old!r} is not once in {mutant.function[1]}")
    tree = ast.parse(text.replace(old, new))
    _note_line(tree.body, 1 + before.count("\n"))
    free = function.__code__.co_freevars
    source = (
        "from __future__ import annotations\n"
        f"def make({', '.join(free)}):\n"
        + textwrap.indent(ast.unparse(tree), "    ")
        + f"\n    return {function.__name__}"
    )
    space: dict[str, Any] = dict(function.__globals__)
    exec(compile(source, f"<{mutant.name}>", "exec"), space)
    make: Callable[..., Any] = space["make"]
    code: CodeType = make(*[None] * len(free)).__code__
    return code


def _note_line(body: list[ast.stmt], line: int) -> bool:
    """Inserts a call of the note before the innermost statement on a line; returns False if there
    is none."""
    for i, statement in enumerate(body):
        if statement.lineno <= line <= (statement.end_lineno or 0):
            inner = [
                getattr(part, name, [])
                for part in (statement, *getattr(statement, "handlers", ()))
                for name in ("body", "orelse", "finalbody")
            ]
            if not any(_note_line(statements, line) for statements in inner):
                body[i:i] = ast.parse(f"{NOTE}()").body
            return True
    return False

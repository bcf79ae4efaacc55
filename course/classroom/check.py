"""Checks and mutants as values, and the checks of an assignment."""

import importlib.util
from collections.abc import Callable
from math import inf
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.comm import Comm

COURSE = Path(__file__).parents[1]
"""The folder of the assignments."""

Adapters: TypeAlias = Any
"""The student's module in its process: numbers, texts, arrays and lists come from it by value, and
other objects as a `remote.Remote`, whose use is a question to that process."""


class Finding(NamedTuple):
    """A fault that a rank has found. Of several, the lowest step is the first, then the rank.

    text    what is wrong, with the number that came out and the number expected, in one line
    step    the round, micro-batch or training step; -1 if the check has none, which is later
    """

    rank: int
    text: str
    step: int = -1

    @property
    def order(self) -> tuple[float, int]:
        """The key by which findings are sorted."""
        return (self.step if self.step >= 0 else inf), self.rank

    def __str__(self) -> str:
        return f"rank {self.rank}{f', step {self.step}' * (self.step >= 0)}: {self.text}"


class FaultError(Exception):
    """A student's value with which a check cannot go on; the text says what is wrong with it."""


class Check(NamedTuple):
    """A graded check of an assignment: all of its points, if it finds nothing on any rank.

    kind     the word for it in results: law, ledger, time, shape or hang
    ranks    the numbers of ranks at which it runs
    run      called on every rank, with random numbers that are alike on all ranks
    """

    name: str
    points: int
    kind: str
    ranks: tuple[int, ...]
    run: Callable[[Comm, Adapters, np.random.Generator], Finding | None]


class Mutant(NamedTuple):
    """A wrong solution: the right one with a fault, which a check has to catch and name.

    edits    texts of the solution, each of them there once, and what replaces them
    check    the name of the check that fails
    says     words of its message that name the fault
    """

    edits: tuple[tuple[str, str], ...]
    check: str
    says: str


def checks_of(assignment: str) -> ModuleType:
    """The module `checks.py` of an assignment: its CHECKS, and the names that are ALLOWED."""
    spec = importlib.util.spec_from_file_location("checks", COURSE / assignment / "checks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Which tests run: the quick ones, the rest, both, or every case.

    scripts/test               the quick tests: all but what quick_cases.txt leaves to the rest
    scripts/test --rest        the rest
    scripts/test --all         every case, those that the marks `one_in` and `long` leave out too
    scripts/test FILE [...]    the quick tests of these files, and the rest

quick_cases.txt names the tests that take long, and says which of their cases are quick tests all
the same: the cheapest of a test, and those that reach lines of nnmpi which no cheaper test reaches.
scripts/choose_tests makes it from what a run has measured.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from .sample import sampled

QUICK_CASES = Path(__file__).resolve().parents[1] / "quick_cases.txt"
ALONE = "-"
"""In quick_cases.txt, the case of a test without parameters."""


class Cases(NamedTuple):
    """Cases of a test that takes long: these are its quick tests, or all but these."""

    listed: frozenset[str] = frozenset()
    are_quick: bool = True

    def is_quick(self, case: str) -> bool:
        """True if the case is a quick test."""
        return (case in self.listed) == self.are_quick


def quick_cases(text: str) -> dict[str, Cases]:
    """The tests that take long, as file::name, and their cases."""
    found, name = dict[str, Cases](), ""
    for line in filter(None, text.splitlines()):
        if line.startswith("    "):
            sign, case = line[4], line[6:]
            found[name] = Cases(found[name].listed | {case}, sign == "+")
        elif line[0] != "#":
            name = line
            found[name] = Cases()
    return found


class Selection(NamedTuple):
    """The tests that run; `costly` are those that take long."""

    costly: Mapping[str, Cases]
    quick: bool = True
    rest: bool = True
    all: bool = False

    @property
    def left_out(self) -> str:
        """What does not run, and how to run it."""
        rest = "the other tests run with scripts/test --rest; " if not self.rest else ""
        return f"{rest}more cases, some of them for hours: scripts/test --all"

    def has(self, test: str, case: str = ALONE) -> bool:
        """True if a case of a test runs, if it is in the sample of its test."""
        is_quick = test not in self.costly or self.costly[test].is_quick(case)
        return self.quick if is_quick else self.rest

    def of(self, test: pytest.Item, cases: Sequence[Any]) -> list[Any]:
        """Those that run of the cases of a test, as pytest has them: with an id, params, marks."""
        if not self.all:
            if test.get_closest_marker("long"):
                return []
            cases = [case for case in cases if all(mark.name != "long" for mark in case.marks)]
            if cases and (one_in := test.get_closest_marker("one_in")):
                cases = sampled(test.name, *one_in.args, cases)
        return [case for case in cases if self.has(test.nodeid, case.id)]


def selection(config: pytest.Config) -> Selection:
    """What the options and arguments of pytest say."""
    costly = quick_cases(QUICK_CASES.read_text(encoding="utf-8"))
    if config.getoption("--all"):
        return Selection(costly, all=True)
    if config.getoption("--rest"):
        return Selection(costly, quick=False)
    is_whole = config.args_source is not pytest.Config.ArgsSource.ARGS
    return Selection(costly, rest=not is_whole)

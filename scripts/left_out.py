"""A plugin of pytest for scripts/without: leaves out tests that ask for what is gone.

NNMPI_GONE_OPTIONS has the names of options and of their values, NNMPI_GONE_NAMES those of modules,
functions, classes, models, data sets and fixtures, with commas between them. A module of nnmpi that
imports one which is gone makes its test fail.
"""

import os
import re
from collections.abc import Generator
from typing import Any

import pytest


def _any_of(variable: str) -> str:
    names = filter(None, os.environ[variable].split(","))
    return "|".join(re.escape(name).replace("_", "[-_]") for name in names) or "no name"


OPTIONS, NAMES = _any_of("NNMPI_GONE_OPTIONS"), _any_of("NNMPI_GONE_NAMES")
ASKS = re.compile(
    rf"\b({OPTIONS})\b.{{0,20}}(is not an option|is not one of)"
    rf"|unrecognized arguments:.*--({OPTIONS})\b"
    rf"|argument \S+: invalid choice: .?({OPTIONS})\b"
    rf"|unexpected keyword argument .({OPTIONS})\b"
    rf"|(model|data set) '({NAMES})\b[^']*' is (unknown|not known)"
    rf"|has no '({NAMES})'"
    rf"|fixture '({NAMES})' not found"
    rf"|\b({NAMES}) is of an add-on that is not here"
)
MISSES = re.compile(rf"No module named '({NAMES})\b")
RAISED = re.compile(r"^(\S+\.py):\d+: ModuleNotFoundError", re.MULTILINE)
PASSED = re.compile(r'^(?:E +)? *(?:File "(.+?)", line \d+|(\S+\.py):\d+: )', re.MULTILINE)
"""Lines of tracebacks that name a file: pytest's behind a message, and others before it."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Turns the failure of a test into a skip, if it asks for such a name."""
    return left_out((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Does the same for a file that asks for one when it is imported."""
    return left_out((yield))


def left_out(report: Any) -> Any:
    """The report, as skipped if its text says that a name is gone."""
    text = "\n".join([report.longreprtext, *(section for _, section in report.sections)])
    if report.failed and (found := ASKS.search(text) or missing_module(text)):
        report.outcome = "skipped"
        report.longrepr = (str(report.fspath or report.nodeid), 0, f"left out: {found.group()}")
    return report


def missing_module(text: str) -> re.Match[str] | None:
    """The message that a test, or a program that it runs, imports a module that is gone."""
    if (found := MISSES.search(text)) is None:
        return None
    before = [
        of_python or of_pytest for of_python, of_pytest in PASSED.findall(text, 0, found.start())
    ]
    paths = map(os.path.relpath, [*before, *RAISED.findall(text, found.end())[:1]])
    here = [path for path in paths if path.startswith(("nnmpi/", "tests/"))]
    return None if here and here[-1].startswith("nnmpi/") else found

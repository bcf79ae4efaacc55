"""A plugin of pytest for scripts/without: leaves out tests that ask for what is gone.

NNMPI_GONE_OPTIONS has the names of options and of their values, NNMPI_GONE_NAMES those of modules,
functions, classes, models, data sets and fixtures, with commas between them. A module of nnmpi that
imports one which is gone makes its test fail, and so does a run that leaves out too many.
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
    rf"\b({OPTIONS})\b.{{0,20}}(is not an option|is not one of|must be one of)"
    rf"|unrecognized arguments:.*--({OPTIONS})\b"
    rf"|argument \S+: invalid choice: .?({OPTIONS})\b"
    rf"|unexpected keyword argument .({OPTIONS})\b"
    rf"|(model|data set) '({NAMES})\b[^']*' is (unknown|not known)"
    rf"|has no (attribute )?'({NAMES})'"
    rf"|fixture '({NAMES})' not found"
    rf"|'({NAMES})' is neither AXIS:"
    rf"|\blayout [^\s=]+({NAMES}): the ways of "
    rf"|\b({NAMES}) is of an add-on that is not here"
)
MISSES = re.compile(rf"No module named '({NAMES})\b")
RAISED = re.compile(r"^(\S+\.py):\d+: ModuleNotFoundError", re.MULTILINE)
PASSED = re.compile(r'^(?:E +)? *(?:File "(.+?)", line \d+|(\S+\.py):\d+: )', re.MULTILINE)
"""Lines of tracebacks that name a file: pytest's behind a message, and others before it."""

LEFT_OUT = "left out: "
"""How the reason of a test begins that is skipped here."""


MOST = 0.1
"""The largest share of tests that may be left out. Without the checks 2% are."""


def pytest_configure(config: pytest.Config) -> None:
    """Counts the tests, unless this process is a worker that runs some of them."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Counts())


class Counts:
    """The tests of a run, and those that are left out, by name; a file that cannot be imported
    counts as one."""

    def __init__(self) -> None:
        self.all, self.left_out = set[str](), set[str]()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Counts a test."""
        self.all.add(report.nodeid)
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        if report.skipped and reason.startswith(LEFT_OUT):
            self.left_out.add(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        """Counts a file that is left out."""
        if report.skipped:
            self.pytest_runtest_logreport(report)

    @property
    def are_too_many(self) -> bool:
        """True if more tests are left out than MOST says."""
        return len(self.left_out) > MOST * len(self.all)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fails the run if it leaves out too many tests."""
        if self.are_too_many:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Prints the counts."""
        line = f"left out {len(self.left_out):,} of {len(self.all):,} tests"
        if self.are_too_many:
            line += f", more than {MOST:.0%}: see what makes left_out.py think that they ask for it"
        terminalreporter.write_line(line)


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
        report.longrepr = (str(report.fspath or report.nodeid), 0, LEFT_OUT + found.group())
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

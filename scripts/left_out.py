"""A plugin of pytest for scripts/without: leaves out tests that ask for what is gone.

NNMPI_GONE has the names of options, of their values, of modules, and of functions and classes, with
commas between them.
"""

import os
import re
from collections.abc import Generator
from typing import Any

import pytest

NAMES = filter(None, os.environ["NNMPI_GONE"].split(","))
GONE = "|".join(name.replace("_", "[-_]") for name in NAMES) or "no option"
ASKS = re.compile(
    rf"\b({GONE})\b.{{0,20}}(is not an option|is not one of)"
    rf"|unrecognized arguments:.*--({GONE})\b"
    rf"|argument --\S+: invalid choice: .?({GONE})\b"
    rf"|unexpected keyword argument .({GONE})\b"
    rf"|(model|data set) '({GONE})\b[^']*' is (unknown|not known)"
    rf"|has no '({GONE})'"
    rf"|No module named '({GONE})\b"
    rf"|\b({GONE}) is of an add-on that is not here"
)


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
    if report.failed and (found := ASKS.search(text)):
        report.outcome = "skipped"
        report.longrepr = (str(report.fspath or report.nodeid), 0, f"left out: {found.group()}")
    return report

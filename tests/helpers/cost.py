"""What each test costs: seconds of processor time, of its own process and of those it started.

Time by a clock depends on what else a machine does; processor time hardly does.
"""

import resource
from collections import Counter
from typing import Any

import pytest

TEST, FILE = 1.0, 10.0
"""The seconds that a quick test may take, and all quick tests of one file."""

STARTED = pytest.StashKey[float]()
COST = "processor seconds"
"""The property of a report that has the cost of its test, its fixtures included."""


def spent() -> float:
    """The processor time of this process and of its children that have ended, in seconds."""
    return sum(
        usage.ru_utime + usage.ru_stime
        for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


class Costs:
    """A plugin of pytest that counts what tests cost, and prints the most costly ones."""

    def __init__(self) -> None:
        self.of = Counter[str]()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        item.stash[STARTED] = spent()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        item.user_properties.append((COST, spent() - item.stash[STARTED]))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what a test has cost; with xdist this is called where reports arrive too."""
        if report.when == "teardown":
            self.of[report.nodeid] += sum(v for name, v in report.user_properties if name == COST)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.of:
            return
        files = Counter[str]()
        for name, seconds in self.of.items():
            files[name.partition("::")[0]] += seconds
        over = sum(seconds > TEST for seconds in self.of.values())
        long = sum(seconds > FILE for seconds in files.values())
        terminalreporter.write_line(
            f"processor time of {len(self.of):,} tests: {self.of.total():,.0f} s; over {TEST:g} s: "
            f"{over}; files over {FILE:g} s: {long}; the most costly:"
        )
        for name, seconds in self.of.most_common(10):
            terminalreporter.write_line(f"{seconds:8.2f} s  {name}")

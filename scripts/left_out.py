"""A plugin of pytest for scripts/without: leaves out tests that ask for what is gone.

A test that fails is skipped if it has asked for something of an add-on that is gone (asked.py says
how that is known), or for a fixture that is gone. All other failures are failures, and so is a run
that leaves out too many tests.
"""

import json
import os
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LEFT_OUT = "left out: asks for "
"""How the reason of a test begins that is skipped here."""

MOST = 0.1
"""The largest share of tests that may be left out. Without the checks 2% are."""


def pytest_configure(config: pytest.Config) -> None:
    """Leaves tests out, and counts them unless this process is a worker that runs some of them."""
    config.pluginmanager.register(LeftOut())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Counts())


class LeftOut:
    """Turns the failure of a test, or of a file that is imported, into a skip."""

    def __init__(self) -> None:
        handle, name = tempfile.mkstemp(prefix="asked-")
        os.close(handle)
        self.file = Path(name)
        os.environ["NNMPI_ASKED"] = str(self.file)  # also of programs that tests start
        gone = json.loads(Path(os.environ["NNMPI_GONE"]).read_text(encoding="utf-8"))
        self.fixtures = {*gone["fixtures"]}
        self.of_fixtures = dict[Any, str]()
        """What fixtures that are made once for several tests asked for meanwhile."""

    def pytest_unconfigure(self) -> None:
        """Removes the file."""
        self.file.unlink()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self) -> None:
        """Forgets what the test before has asked for."""
        self.file.write_text("", encoding="utf-8")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        """Keeps what a fixture asks for that later tests get too, or whose error they get."""
        before = self.file.read_text(encoding="utf-8")
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                text = self.file.read_text(encoding="utf-8")
                self.of_fixtures[fixturedef] = text.removeprefix(before)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: Any, call: pytest.CallInfo[None]
    ) -> Generator[None, Any, Any]:
        """Looks at what a test has asked for."""
        report = yield
        error = call.excinfo and call.excinfo.value
        if isinstance(error, pytest.FixtureLookupError) and error.argname in self.fixtures:
            return self.left_out(report, f"fixture {error.argname}")
        used = item._fixtureinfo.name2fixturedefs.values()  # pytest has no public name for these
        of_fixtures = (self.of_fixtures.get(one, "") for found in used for one in found)
        return self.left_out(report, self.asked() + "".join(of_fixtures))

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, Any, Any]:
        """Looks at what a file has asked for."""
        self.file.write_text("", encoding="utf-8")
        return self.left_out((yield), self.asked())

    def asked(self) -> str:
        """What was asked for, a line for each thing."""
        return self.file.read_text(encoding="utf-8")

    def left_out(self, report: Any, asked: str) -> Any:
        """The report, as skipped if it is of a failure and something was asked for."""
        if report.failed and asked:
            report.outcome = "skipped"
            reason = LEFT_OUT + asked.partition("\n")[0]
            report.longrepr = (str(report.fspath or report.nodeid), 0, reason)
        return report


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
            line += f", more than {MOST:.0%}: see what of asked.py each of them asks for"
        terminalreporter.write_line(line)

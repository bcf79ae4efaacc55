"""A plugin of pytest for scripts/choose_tests: notes which lines of nnmpi each test reaches.

NNMPI_TEST_RECORD is the folder that it writes to. Processes that tests start are noted too.
"""

import json
import os
import sysconfig
from pathlib import Path
from typing import Any

import coverage
import pytest

from helpers.cost import COST

FOLDER = Path(os.environ["NNMPI_TEST_RECORD"])
SOURCE = str(Path(__file__).resolve().parents[2] / "nnmpi")
STARTED = "COVERAGE_PROCESS_START"
"""The variable with which coverage begins in processes that tests start."""

SETTINGS = f"""[run]
source = {SOURCE}
parallel = true
data_file = {FOLDER / "lines"}
context = ${{PYTEST_CURRENT_TEST}}
sigterm = true
"""


def pytest_configure(config: pytest.Config) -> None:
    """Begins in each process that runs tests."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    (FOLDER / "settings").write_text(SETTINGS, encoding="utf-8")
    begin = Path(sysconfig.get_path("purelib"), "nnmpi_test_record.pth")
    begin.write_text(f"import os; exec({BEGIN!r})\n", encoding="utf-8")
    os.environ[STARTED] = str(FOLDER / "settings")
    config.pluginmanager.register(Record())


BEGIN = f"if {STARTED!r} in os.environ: import coverage; coverage.process_startup()"
"""What each Python of this environment does first, as long as the file with it is there."""


class Record:
    """The lines and the costs of the tests of this process."""

    def __init__(self) -> None:
        name = str(FOLDER / "lines")
        self.coverage = coverage.Coverage(
            name, data_suffix=True, source=[SOURCE], config_file=False
        )
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.coverage.switch_context(item.nodeid)
        result = yield
        self.coverage.switch_context("")
        (cost,) = (seconds for name, seconds in item.user_properties if name == COST)
        with (FOLDER / f"costs-{os.getpid()}").open("a", encoding="utf-8") as file:
            file.write(json.dumps([item.nodeid, cost]) + "\n")
        return result

    def pytest_unconfigure(self) -> None:
        self.coverage.stop()
        self.coverage.save()

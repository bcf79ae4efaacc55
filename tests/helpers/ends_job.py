"""A pytest hook: over MPI, a test that fails on one rank ends the job.

Otherwise the other ranks would wait for it in their next collective.
"""

import pytest

from nnmpi.comm import launched, world


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and launched() > 1:
        world().abort(f"{report.nodeid} failed:\n{report.longreprtext}")

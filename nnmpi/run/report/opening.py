"""open_report: where the events of a run go; the first rank tells, and all fail if it cannot."""

from nnmpi.comm import Comm, has_launcher
from nnmpi.config import Config
from nnmpi.parallel.agreement import all_or_none
from nnmpi.run.report.report import NullReport, Report


def open_report(config: Config, comm: Comm, given: Report | None = None) -> Report:
    """The report of this rank, where none is given; every rank calls it."""

    def opened() -> Report:
        if comm.rank:
            return NullReport()
        return Report(config.log, config.quiet, launched=has_launcher(), as_json=config.json)

    return all_or_none(comm, lambda: given or opened())

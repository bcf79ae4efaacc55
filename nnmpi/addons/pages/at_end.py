"""Writes the page of --report at the end of a run."""

from contextlib import ExitStack
from pathlib import Path

from nnmpi.addons.pages.page import of_run, write
from nnmpi.comm.stderr import print_error
from nnmpi.io.output import LostOutputError, Report
from nnmpi.options.config import Config
from nnmpi.run.training import RunParts


def write_at_end(outputs: ExitStack, config: Config, report: Report, writes: bool) -> None:
    """Registers in `outputs` that the page of --report is written when they are closed, if this
    rank `writes`; it shows the log, or else the events that the report has kept."""
    assert config.report is not None
    path = Path(config.report)

    def end(kind: type[BaseException] | None, *_: object) -> None:
        try:
            write(path, of_run(config, report.kept or ()))
        except ValueError as error:
            if kind is None:
                raise LostOutputError(str(error)) from None
            print_error(str(error))

    if writes:
        report.kept = None if config.log else []
        outputs.push(end)


PARTS = RunParts(at_end=write_at_end)

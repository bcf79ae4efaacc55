"""Reports of a run: its events as text, as JSON and as pictures, and its progress."""

from nnmpi.run.report.messages import Event as Event
from nnmpi.run.report.report import LostOutputError as LostOutputError
from nnmpi.run.report.report import NullReport as NullReport
from nnmpi.run.report.report import Report as Report
from nnmpi.run.report.report import open_report as open_report

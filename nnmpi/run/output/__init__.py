"""Reports of a run: its events as text, as JSON and as pictures, and its progress."""

from nnmpi.run.output.messages import Event as Event
from nnmpi.run.output.report import LostOutputError as LostOutputError
from nnmpi.run.output.report import NullReport as NullReport
from nnmpi.run.output.report import Report as Report
from nnmpi.run.output.report import open_report as open_report

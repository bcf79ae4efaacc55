"""Output of a run: its events as text, as JSON and as pictures, and its progress."""

from nnmpi.io.output.messages import Event as Event
from nnmpi.io.output.report import LostOutputError as LostOutputError
from nnmpi.io.output.report import NullReport as NullReport
from nnmpi.io.output.report import Report as Report
from nnmpi.io.output.report import open_report as open_report

"""The option --trace, which writes a timeline of the operations of all ranks."""

from dataclasses import dataclass

from nnmpi.options.features import AddOnOptions, OutputFile
from nnmpi.options.groups import files_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --trace, which writes a timeline of the operations of all ranks."""

    trace: str | None = files_option(None, "write a timeline of all ranks, for Chrome or Perfetto")


TRACE = OutputFile("trace", "a trace", lambda head: head[:1] == b"{")
ADDED = AddOnOptions(Options, outputs=(TRACE,))

"""The option --report, which writes an HTML page about a run at its end."""

from dataclasses import dataclass

from nnmpi.options.features import Part
from nnmpi.options.groups import files_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """The option --report, which writes an HTML page about a run at its end."""

    report: str | None = files_option(
        None, "at the end, write a page about the run, by default to run.html", bare="run.html"
    )


PART = Part(Options)

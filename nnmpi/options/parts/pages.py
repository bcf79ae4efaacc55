"""Options of the page (HTML) about a run."""

from dataclasses import dataclass

from nnmpi.options.features import Part
from nnmpi.options.groups import files_option


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of the page (HTML) about a run."""

    report: str | None = files_option(
        None, "at the end, write a page about the run, by default to run.html", bare="run.html"
    )


PART = Part(Options)

"""The page as HTML: one file, with all that it needs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from nnmpi.comm.stderr import print_error
from nnmpi.config import Config
from nnmpi.run.files.atomic import refusing, replaced
from nnmpi.run.page import sources
from nnmpi.run.page.sources import LoggedEvents, as_values
from nnmpi.run.report import LostOutputError, Report

PARTS = {
    "css": "page.css",
    "js": "page.js",
    "uplot_css": "uplot/uPlot.min.css",
    "uplot_js": "uplot/uPlot.iife.min.js",
    "uplot_licence": "uplot/LICENSE",
}
"""Files that stand in the page, by the marks in page.html."""


def write(path: Path, logs: Sequence[LoggedEvents]) -> None:
    """Writes the page, or leaves an old file; raises ValueError if it cannot."""
    page = html(as_values(logs))
    with refusing(path, "write report", "name another file"), replaced(path, "x") as file:
        file.write(page)


@contextmanager
def page_of_run(config: Config, report: Report, writes: bool) -> Iterator[None]:
    """Behind it the page of --report is written by the rank that `writes`: of the log, if there is
    one."""
    failed, writes = True, bool(config.report) and writes
    if writes and not config.log and report.kept is None:  # a report of the caller's own
        report.kept = []
    try:
        yield
        failed = False
    finally:
        try:
            if writes:
                write(Path(config.report or ""), sources.of_run(config, report.kept or ()))
        except ValueError as error:
            if not failed:
                raise LostOutputError(str(error)) from None
            print_error(str(error))


def html(values: Mapping[str, Any]) -> str:
    """The page of these values. Texts of logs are in its JSON alone, where none can end it."""
    folder = files("nnmpi.run.page")
    parts = {mark: (folder / name).read_text(encoding="utf-8") for mark, name in PARTS.items()}
    tasks = dict.fromkeys(run["task"] for run in values["runs"])
    title = tasks.popitem()[0] if len(tasks) == 1 else f"{len(values['runs'])} runs"
    parts |= {"title": escape(title), "data": as_json(values)}
    page = (folder / "page.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+)\}\}", lambda mark: parts[mark[1]], page)


def as_json(values: Mapping[str, Any]) -> str:
    """JSON in ASCII without `<`, so that it may stand in a script of a page."""
    found = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return found.replace("<", "\\u003c")

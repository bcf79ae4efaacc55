"""The page as HTML: one file, with all that it needs."""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from nnmpi.comm.stderr import print_error
from nnmpi.options.config import Config
from nnmpi.run.files.atomic import refusing, replaced
from nnmpi.run.page import sources
from nnmpi.run.page.sources import LoggedEvents, as_values
from nnmpi.run.report import LostOutputError, Report


def write(path: Path, logs: Sequence[LoggedEvents]) -> None:
    """Writes the page, or leaves an old file; raises ValueError if it cannot."""
    page = html(as_values(logs))
    with refusing(path, "write report", "name another file"), replaced(path, "x") as file:
        file.write(page)


def write_at_end(outputs: ExitStack, config: Config, report: Report, writes: bool) -> None:
    """The rank that `writes` writes the page of --report when `outputs` are closed: of the log, or
    else of all that the report shows until then."""

    def end(kind: type[BaseException] | None, *_: object) -> None:
        try:
            write(Path(config.report or ""), sources.of_run(config, report.kept or ()))
        except ValueError as error:
            if kind is None:
                raise LostOutputError(str(error)) from None
            print_error(str(error))

    if config.report and writes:
        report.kept = None if config.log else report.kept or []
        outputs.push(end)


def html(values: Mapping[str, Any]) -> str:
    """The page of these values: page.html, in which marks name files beside it. Texts of logs are
    in its JSON alone, where none can end it, and in its title."""
    folder, parts = files("nnmpi.run.page"), {"title": escape(values["title"])}
    parts["data"] = as_json(values)

    def part(name: str) -> str:
        return parts.get(name) or (folder / name).read_text(encoding="utf-8")

    return re.sub(r"\{\{(.+?)\}\}", lambda mark: part(mark[1]), part("page.html"))


def as_json(values: Mapping[str, Any]) -> str:
    """JSON in ASCII without `<`, so that it may stand in a script of a page."""
    found = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return found.replace("<", "\\u003c")

"""Reading the file of --log, one JSON object a line."""

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from nnmpi.run.report.messages import Event

REMEDY = "name a file that --log has written"


class RunLog(NamedTuple):
    """A run: its name, its first event, and those of its epochs."""

    name: str
    start: Event
    epochs: list[Event]


def read_logs(paths: list[str | os.PathLike[str]]) -> list[RunLog]:
    """The runs, each named after its file; after its path where two files have one name."""
    files = [Path(path) for path in paths]
    stems = [file.stem for file in files]
    return [
        read_log(file, file.stem if stems.count(file.stem) == 1 else str(file.with_suffix("")))
        for file in files
    ]


def read_log(file: Path, name: str) -> RunLog:
    """The run of a log; its last line may be cut off, as that of a run that was killed."""
    try:
        *lines, _ = file.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise ValueError(f"cannot read log {file}: {error.strerror}; {REMEDY}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not a log: it is not text; {REMEDY}") from None
    events = [_event(file, i, line) for i, line in enumerate(lines, 1)]
    if not events or events[0]["event"] != "start":
        raise ValueError(f"{file} is not a log: it has no start event in line 1; {REMEDY}")
    epochs = [e for e in events if e["event"] == "epoch"]
    if not epochs:
        last = events[-1]["event"]
        raise ValueError(f"log {file} has no epoch yet: its last event is {last!r:.20}")
    if not ({"model", "data"} <= events[0].keys() and all(map(_is_epoch, epochs))):
        raise ValueError(f"{file} is not a log: its events lack what nnmpi writes; {REMEDY}")
    return RunLog(name, events[0], epochs)


def _is_epoch(event: Event) -> bool:
    """Whether it has numbers where numbers are drawn; null stands for NaN."""
    counted = all(isinstance(event.get(key), int) for key in ("epoch", "steps"))
    drawn = (event.get(key) for key in ("loss", "test_loss", "accuracy", "seconds"))
    return counted and all(value is None or isinstance(value, int | float) for value in drawn)


def _event(file: Path, number: int, line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        raise ValueError(f"{file} is not a log: line {number} is no event in JSON; {REMEDY}")
    return event

"""Reads the events in a file of --log, and divides them into runs."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from nnmpi.io.output.messages import Event
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import content, parsed

LONGEST_LOG = 100_000_000  # bytes: some 300,000 epochs
REMEDY = "name a file that --log has written"
BEGINS = ("start", "resumed")
"""The types of events with which a log can begin."""

File: TypeAlias = str | os.PathLike[str]


def events_of(file: File) -> list[Event]:
    """Returns the entries of a log file (--log), such as {"event": "epoch", "epoch": 1, "loss":
    0.5, ...}; raises ValueError if it is not a log. An incomplete last line, of a run that was
    killed or is still running, is left out."""
    path = shown(file)
    text = content(file, f"log {path}", LONGEST_LOG, REMEDY)
    events = list[Event]()
    try:
        *lines, _ = text.decode().split("\n")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a log: it is not text; {REMEDY}") from None
    for number, line in enumerate(lines, 1):
        try:
            event = parsed(json.loads, line)
        except ValueError:
            event = None
        if not isinstance(event, dict) or not isinstance(event.get("event"), str):
            raise ValueError(f"{path} is not a log: line {number} is not a JSON event; {REMEDY}")
        events.append(event)
    if not events:
        raise ValueError(f"{path} is not a log: it has no complete line; {REMEDY}")
    if events[0]["event"] not in BEGINS:
        raise ValueError(f"{path} is not a log: line 1 is not the start of a run; {REMEDY}")
    return events


NUMBERED = {"epoch": "epoch", "step": "step", "evaluation": "step"}
"""Types of events with a number that grows within a run, and the key of the number."""


def runs_of(events: Sequence[Event]) -> list[list[Event]]:
    """Returns the runs in a log, each as a list of its events, the start event first.

    If `fit` is called again and goes on with the next epoch, its events are added to the run
    before. With a step, evaluation or epoch whose number the run has had already another run
    begins, to which the same start event is given.
    """
    runs, made = list[list[Event]](), dict[str, int]()
    for event in events:
        kind = event["event"]
        if kind == "start" or not runs:
            runs.append([])
            made = {}
        elif kind in NUMBERED:
            number = event[NUMBERED[kind]]
            if number <= made.get(kind, 0):
                runs.append([runs[-1][0]])
                made = {}
            made[kind] = number
        runs[-1].append(event)
    completed, trained, last = list[list[Event]](), list[Event](), 0
    for run in runs:
        epochs = [event["epoch"] for event in run if event["event"] == "epoch"]
        if epochs and 0 < last < epochs[0]:
            trained += run
        else:
            completed.append(run)
            trained = run if epochs else trained
        last = epochs[-1] if epochs else last
    return completed


def named(files: Sequence[File]) -> list[str]:
    """Returns files' names without suffix, or paths if two names are equal."""
    stems = [Path(file).stem for file in files]
    return [
        stem if stems.count(stem) == 1 else str(Path(file).with_suffix(""))
        for file, stem in zip(files, stems, strict=True)
    ]


def numbered(name: str, runs: int) -> list[str]:
    """Returns the names of a log's runs, numbered if there are several."""
    return [name] if runs == 1 else [f"{name} ({i})" for i in range(1, runs + 1)]

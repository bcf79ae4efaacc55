"""Traces and logs with damaged text and with values of any type, drawn as text and as pictures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from fuzzing import GOOD, Fault, Outcome, damaged, refused

import nnmpi
from nnmpi import cli, simulate
from nnmpi.run.report.plot import read_logs

VALUES = (
    *(None, True, -1, 0.5, 1e308, -1e308, 5e-324, float("nan"), float("inf"), 10**400, 2**31),
    *(2**63, "\x1b[31m", "\ud800", "\0", "", "7", "F", "-->&<b>", "$x", "m" * 20_000, "a\nb"),
    *([1], {"a": 1}),
)
NAMES = ("t", "\x1b[31m", "\udcff", "a\nb", "$x$", "-->&<b>", "m" * 200)
MANY = 20_000  # events of one file, as many ranks: what takes quadratic time is not over in time


def trace_case(rng: np.random.Generator, folder: Path) -> Outcome:
    n = MANY if rng.random() < 0.03 else int(rng.integers(1, 20))
    cats = ("F", "B", "wait", "communicate", "UPDATE")
    events = [
        {"ph": "X", "pid": i % 3 if n < MANY else i, "ts": 10 * i, "dur": int(rng.integers(30))}
        | {"cat": cats[rng.integers(len(cats))], "args": {"step": 0, "micro": i, "stage": i % 6}}
        for i in range(n)
    ]
    for event in (events[rng.integers(n)] for _ in range(int(rng.integers(0, 3)))):
        args = event.get("args")
        _change(rng, args if isinstance(args, dict) and rng.random() < 0.4 else event)
    path = _written(rng, folder, [json.dumps({"traceEvents": events})])
    options = simulate.parser().parse_args(["trace", str(path), f"--svg={folder / 'p.svg'}"])
    return _drawn(folder, lambda: options.run(options))


def log_case(rng: np.random.Generator, folder: Path) -> Outcome:
    keys = ("epoch", "steps", "seconds", "loss", "test_loss", "accuracy")
    events = [{"event": "epoch", **dict.fromkeys(keys, i)} for i in range(1, 5)]
    events.insert(0, {"event": "start", "model": "m", "data": "d"})
    for _ in range(int(rng.integers(0, 3))):
        _change(rng, events[rng.integers(len(events))])
    log = _written(rng, folder, [*map(json.dumps, events), ""])
    x = ("epochs", "steps", "seconds")[rng.integers(3)]
    if cli.picture_problem("p.svg"):  # no matplotlib
        return refused(lambda: read_logs([log]), str(folder))[1]
    return _drawn(folder, lambda: nnmpi.plot(log, x, folder / "p.svg"))


def _change(rng: np.random.Generator, event: dict[str, Any]) -> None:
    """One entry of an event has any value, or is gone."""
    if event:
        key = list(event)[rng.integers(len(event))]
        event[key] = VALUES[rng.integers(len(VALUES))]
        if rng.random() < 0.1:
            del event[key]


def _written(rng: np.random.Generator, folder: Path, lines: list[str]) -> Path:
    path = folder / f"{NAMES[rng.integers(len(NAMES))]}.json"
    content = "\n".join(lines).encode()
    path.write_bytes(damaged(rng, content) if rng.random() < 0.3 else content)
    return path


def _drawn(folder: Path, draw: Callable[[], str | None]) -> Outcome:
    """Whether a drawing is text that prints and a picture that can be read, or a refusal."""
    text, outcome = refused(draw, str(folder), "draw it over")
    picture = folder / "p.svg"
    if outcome.fault is not None or not picture.exists():
        return outcome
    content = picture.read_text(encoding="utf-8")
    if not all(line.isprintable() for line in [*(text or "").split("\n"), *content.split("\n")]):
        return Outcome(Fault.WRONG, "control characters in a drawing")
    ElementTree.fromstring(content)
    return GOOD

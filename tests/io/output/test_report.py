"""Reports: text, JSON where it is asked for and in the log, and progress."""

import io
import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.datafiles import refused

from nnmpi.io.output import Report, report

START = {
    "event": "start",
    "model": "mine",
    "parameters": 1234,
    "data": "é\n\x1b[2J",
    "train_samples": 1200,
    "test_samples": 300,
    "note": "a fifth held out",
    "steps": 5000,
    "ranks": 4,
    "sync": "bsp",
    "allreduce": "shared",
    "progress": "poll",
}
ALONE = {key: value for key, value in START.items() if key not in ("allreduce", "progress")}
SERVED = ALONE | {"servers": 1, "steps_ahead": 3, "exchange": "memory", "sync": "ssp"}
AT = {"step": 1200, "steps": 5000, "epoch": 0.24, "seconds": 1.5}
TRAINED = {"loss": 0.5, "samples_per_second": 4321.9}
TESTED = {"test_loss": 0.25, "accuracy": 0.9877}
STEP = {"event": "step", **AT, **TRAINED, "gradient_norm": 1.23456, "lr": 0.003}
EVALUATION = {"event": "evaluation", **AT, **TESTED}
PROGRESS = {"event": "progress", **AT, **TRAINED}
EPOCH = {
    "event": "epoch",
    "epoch": 1,
    "steps": 10,
    "loss": 0.1 + 0.2,
    **TESTED,
    "samples_per_second": 11000.5,
    "skipped_steps": 0,
    "seconds": 1.2,
    "lr": 0.003,
    "mean_gradient_norm": 0.5,
    "epoch_samples_per_second": 12345.6,
}
DIFFERENCES = {
    f"{what}_{measure}": 1 / 3 * 10.0**-i
    for i, (what, measure) in enumerate(
        (what, measure)
        for what in ("loss", "gradients", "parameters")
        for measure in ("absolute", "relative", "ulp")
    )
}
VERIFY = {"event": "verify", "step": 1234, **DIFFERENCES, "replicas_equal": True}
DONE = EPOCH | {"event": "done", "seconds": 1.25, "epochs": 1, "layout": {"dp": 1}}
FAILED = {"event": "failed", "error": "gone", "steps": 10}
STOPPED = DONE | {"event": "stopped"}
DRY = {"event": "dry-run", "model": "mine"}
EVENTS = [START, VERIFY, STEP, PROGRESS, EVALUATION, EPOCH, STOPPED, FAILED, DONE]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(stdout: io.StringIO, *events: dict[str, Any], **options: Any) -> str:
    with Report(stdout=stdout, **options) as report:
        for event in events:
            report.event(event)
    return stdout.getvalue()


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_json_is_one_object_a_line(stdout: Any) -> None:
    text = shown(stdout(), *EVENTS, as_json=True)
    assert [json.loads(line) for line in text.splitlines()] == EVENTS
    assert text.endswith("}\n")
    assert text.replace("\n", "").isascii()
    assert text.replace("\n", "").isprintable()


SENTENCES: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "start": (
        START,
        ("mine (1,234 parameters)", "1,200 training samples", "5,000 steps", "a fifth held"),
    ),
    "verify, bad": (
        VERIFY | {"loss_relative": math.inf, "parameters_relative": 0.0, "replicas_equal": False},
        ("loss inf, gradients 3.33e-05, parameters 0; replicas differ",),
    ),
    "epoch": (EPOCH, ("epoch   1", "0.3000", "0.2500", "98.77%", "12,346 samples/s")),
    "progress": (PROGRESS, ("step 1,200 of 5,000   loss 0.5000   4,322 samples/s",)),
    "evaluation": (EVALUATION, ("step 1,200 of 5,000   test loss 0.2500   accuracy 98.77%\n",)),
    "stopped": (STOPPED, ("stopped: accuracy 98.77%", "after 10 steps in 1.2 s")),
    "done": (DONE, ("done: accuracy 98.77%", "loss 0.3000", "11,000 samples/s")),
    "done, verified": (
        DONE | {"largest_differences": DIFFERENCES},
        (
            "done: accuracy 98.77%",
            "verified: largest relative differences: loss 0.0333, gradients 3.33e-05, "
            "parameters 3.33e-08 (updated by the same gradients)\n",
        ),
    ),
    "another": ({"event": "hint", "a": 1, "b": "two"}, ("a 1, b two",)),
}


@pytest.mark.parametrize("case", SENTENCES.values(), ids=SENTENCES)
def test_an_event_as_text(case: Any) -> None:
    event, words = case
    text = shown(io.StringIO(), event)
    assert text == shown(Terminal(), event)
    assert [word for word in words if word not in text] == [], text
    assert "{" not in text
    assert "event" not in text


LAYOUTS: dict[str, tuple[dict[str, Any], str]] = {
    "one rank": (ALONE | {"ranks": 1}, "on 1 rank"),
    "verify": (
        START | {"allreduce": "auto", "verify": True},
        "on 4 ranks, all-reduce auto, verified against one rank",
    ),
    "ssp": (SERVED, "on 4 ranks, including 1 server, ssp with staleness 3"),
    "slices": (
        ALONE | {"reproducible": True, "slices": 1},
        "on 4 ranks, reproducible with 1 slice",
    ),
    "stragglers": (
        ALONE | {"slow_rank": "0:3", "jitter": "0.1:5"},
        "on 4 ranks, slow rank 0:3, jitter 0.1:5",
    ),
}


@pytest.mark.parametrize("case", LAYOUTS.values(), ids=LAYOUTS)
def test_the_layout_as_text(case: Any) -> None:
    event, line = case
    assert line in shown(Terminal(), event).splitlines()


# ---- the log


def test_a_line_is_in_the_log_before_the_next_event(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Report(str(log), stdout=io.StringIO()) as report:
        for i, event in enumerate(EVENTS, 1):
            report.event(event)
            lines = log.read_text().splitlines()
            assert [json.loads(line) for line in lines] == EVENTS[:i]


def test_a_log_has_the_lines_of_one_run(tmp_path: Path) -> None:
    """Another run is refused, at the same time and later."""
    log = tmp_path / "log"
    with Report(str(log), stdout=io.StringIO()) as report:
        report.event(FAILED)
        with refused(f"cannot write log {log}: another run writes to it; name another file"):
            Report(str(log))
        report.event(FAILED)
    with refused(f"cannot write log {log}: it has a run already;", "another file", "--append"):
        Report(str(log), quiet=True)
    assert [json.loads(line) for line in log.read_text().splitlines()] == [FAILED] * 2


@pytest.mark.parametrize(
    ("before", "kept"),
    {
        "nothing": ("", ""),
        "a beginning": ('{"even', ""),
        "a dry run": (json.dumps(DRY) + "\n", ""),
        "a run": (json.dumps(START) + "\n", json.dumps(START) + "\n"),
        "a run that was killed": (json.dumps(START) + '\n{"event": "epo', json.dumps(START) + "\n"),
    }.values(),
)
def test_a_run_that_is_appended_begins_on_a_line_of_its_own(
    tmp_path: Path, before: str, kept: str
) -> None:
    (tmp_path / "log").write_text(before)
    shown(io.StringIO(), DONE, log=str(tmp_path / "log"), appends=True)
    assert (tmp_path / "log").read_text() == kept + json.dumps(DONE) + "\n"


# ---- the bar, and lines instead of it


class Clock(SimpleNamespace):
    """The time of nnmpi.io.output, which passes on demand."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(report, "time", clock)
    return clock


def steps(report: Report, first: int, last: int) -> None:
    """The bar is redrawn after a tenth of a second at the earliest."""
    for step in range(first, last + 1):
        report.progress(step, 8, step / 16, {"samples_per_second": 1000.0})
        time.sleep(0.12)


LINE = "step 1,200 of 5,000   loss 0.5000   norm 1.235   lr 0.003   4,322 samples/s\n"


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_steps_are_shown_after_ten_seconds_without_a_line(stdout: Any, clock: Clock) -> None:
    """So a short run, or one of short epochs, prints none; where --log-every is given, all are."""
    out = stdout()
    with Report(stdout=out) as report:
        for seconds in (0, 9, 2, 9, 2):
            clock.now += seconds
            report.event(STEP)
    assert out.getvalue() == 2 * LINE
    for kind in (
        {"event": "start"},
        {"event": "resumed", "step": 3, "checkpoint": "c", "notes": []},
    ):
        start = {**START, **kind, "options": {"log_every": 7}}
        assert shown(stdout(), start, STEP, STEP).endswith(2 * LINE)
    assert shown(stdout(), {**START, "options": {"log_every": None}}, STEP).count(LINE) == 0
    assert shown(stdout(), STEP, quiet=True) == ""


@pytest.mark.parametrize("stdout", [io.StringIO, Terminal])
def test_quiet_shows_no_progress(
    stdout: Any, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    out = stdout()
    with Report(quiet=True, stdout=out) as report:
        report.progress(1, 8, 0.5, {"samples_per_second": 1000.0})
        clock.now += 11
        report.progress(2, 8, 0.5, {"samples_per_second": 1000.0})
    assert out.getvalue() == ""
    assert capsys.readouterr() == ("", "")


def test_a_run_goes_on_where_the_terminal_is_gone() -> None:
    class Hangs(Terminal):
        gone = False

        def write(self, text: str) -> int:
            if self.gone:
                raise OSError(5, "Input/output error")
            return super().write(text)

    terminal = Hangs()
    with Report(stdout=terminal) as report:
        steps(report, 1, 1)
        assert "1/8" in terminal.getvalue()
        terminal.gone = True
        steps(report, 2, 3)
        report.end_progress()


def test_a_name_that_stdout_cannot_show_is_escaped() -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii")
    with Report(stdout=stdout) as report:
        report.event(START | {"data": "ümlaut.npz"})
    stdout.seek(0)
    assert r"\xfcmlaut.npz" in stdout.read()

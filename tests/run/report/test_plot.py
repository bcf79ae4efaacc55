"""Pictures of logs, and what is said where there is nothing to draw."""

import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.datafiles import refused
from helpers.runs import rows, small

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.run.report.plot import read_log, read_logs
from nnmpi.run.report.plot_command import main

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
START = {"event": "start", "model": "mine", "data": "yours"}


def write(path: Path, *events: Any, end: str = "\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
    path.write_text("\n".join(lines) + end)
    return path


def epochs(n: int = 3, **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "event": "epoch",
            "epoch": i,
            "steps": 7 * i,
            "seconds": 1.5 * i,
            "loss": 1 / i,
            "test_loss": 2 / i,
            "accuracy": 1 - 0.1 / i,
            **more,
        }
        for i in range(1, n + 1)
    ]


class Drawn:
    """The panels of the last picture: their labels, and their lines."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from matplotlib.figure import Figure

        save = Figure.savefig

        def noted(figure: Any, *arguments: Any, **options: Any) -> None:
            self.title, self.axes = figure.get_suptitle(), figure.get_axes()
            save(figure, *arguments, **options)

        monkeypatch.setattr(Figure, "savefig", noted)

    def legend(self, panel: int) -> list[str]:
        return [text.get_text() for text in self.axes[panel].get_legend().get_texts()]

    def line(self, panel: int, number: int) -> list[tuple[float, float]]:
        return [tuple(point) for point in self.axes[panel].get_lines()[number].get_xydata()]


@needs_matplotlib
@pytest.mark.parametrize("largest", [1.0, 1e12])
def test_the_axis_of_losses_has_numbers(
    largest: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the loss of a run that diverged is far from the others."""
    events = epochs()
    events[0]["loss"] = largest
    drawn = Drawn(monkeypatch)
    nnmpi.plot(write(tmp_path / "log.jsonl", START, *events), out=tmp_path / "a.png")
    axis = drawn.axes[0].yaxis
    low, high = axis.get_view_interval()
    shown = [place for place in axis.get_majorticklocs() if low <= place <= high]
    assert 2 <= len(shown) <= 15


@needs_matplotlib
@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_log_of_a_run_is_drawn(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, out, drawn = tmp_path / "log.jsonl", tmp_path / f"picture{suffix}", Drawn(monkeypatch)
    config = Config(epochs=3, batch_size=14, log=str(log), quiet=True)
    done = Trainer(config, small, rows()).fit()
    nnmpi.plot(log, out=out)
    assert out.stat().st_size > 5000
    assert drawn.title == "small on arrays"
    assert drawn.legend(0) == ["training", "test"]
    assert drawn.legend(1) == [f"last: {done['accuracy']:.2%}"]
    assert drawn.line(0, 0)[-1] == (3, done["loss"])
    assert drawn.line(1, 0)[-1] == (3, pytest.approx(done["accuracy"]))


@needs_matplotlib
def test_everything_that_logs_have_is_drawn_if_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, more = Drawn(monkeypatch), {"lr": 0.5, "mean_gradient_norm": 2.0}
    rates = {"epoch_samples_per_second": 3.0, "epoch_tokens_per_second": 30.0}
    log = write(tmp_path / "text.jsonl", START, *epochs(**more, **rates))
    nnmpi.plot(log, out=tmp_path / "p.png", everything=True)
    labels = ["learning rate", "norm of the gradient", "tokens a second"]
    assert [axes.get_ylabel() for axes in drawn.axes] == ["loss", "test accuracy", *labels]
    assert [drawn.line(i, 0)[-1] for i in (2, 3, 4)] == [(3, 0.5), (3, 2.0), (3, 30.0)]
    nnmpi.plot(log, out=tmp_path / "p.png")
    assert len(drawn.axes) == 2


@needs_matplotlib
@pytest.mark.parametrize(("x", "last"), [("epochs", 3), ("steps", 21), ("seconds", 4.5)])
def test_several_runs_are_told_apart_by_their_names(
    x: str, last: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    drawn = Drawn(monkeypatch)
    write(Path("a/run.jsonl"), START, *epochs())
    write(Path("b/run.jsonl"), {**START, "model": "another"}, *epochs())
    write(Path("plain.jsonl"), START, *epochs(accuracy=0.5))
    nnmpi.plot(["a/run.jsonl", "b/run.jsonl", "plain.jsonl"], x=x, out="p.png")
    assert drawn.title == "3 runs"
    for axes in drawn.axes:  # whatever the names, the legend covers no line
        assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0
    assert drawn.legend(0) == ["a/run", "b/run", "plain", "test"]
    assert drawn.legend(1) == ["a/run: 96.67%", "b/run: 96.67%", "plain: 50.00%"]
    assert drawn.line(0, 0)[-1] == (last, 1 / 3)
    assert drawn.line(0, 1)[-1] == (last, 2 / 3)


@needs_matplotlib
def test_names_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an accuracy that is not a number does no harm."""
    drawn = Drawn(monkeypatch)
    start = {**START, "data": "$\\frac{.npz"}
    logs = [
        write(tmp_path / name, start, *epochs(accuracy=None)) for name in ("_a.jsonl", "$b$.jsonl")
    ]
    nnmpi.plot(logs, out=tmp_path / "p.png")
    assert drawn.title == "mine on \\$\\frac{.npz"
    labels = [text.get_text() for text in drawn.axes[1].get_legend().get_texts()]
    assert labels == [" _a: nan%", "\\$b\\$: nan%"]


@needs_matplotlib
def test_without_accuracies_only_losses_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Null is a number that JSON lacks; a loss may be negative."""
    drawn, events = Drawn(monkeypatch), epochs(40, loss=None, test_loss=-1.0)
    for event in events:
        del event["accuracy"]
    nnmpi.plot(write(tmp_path / "log", START, *events), out=tmp_path / "p.svg")
    assert len(drawn.axes) == 1
    assert drawn.axes[0].get_yscale() == "linear"


@needs_matplotlib
def test_hostile_texts_reach_no_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    drawn, picture = Drawn(monkeypatch), tmp_path / "p.svg"
    start = {**START, "model": "\x1b[31m\0\ud800-->", "data": "d" * 10**4}
    logs = [write(tmp_path / name, start, *epochs()) for name in ("\x1b.jsonl", "\udcff.jsonl")]
    nnmpi.plot(logs, out=picture)
    assert drawn.title.startswith(r"\x1b[31m\x00\ud800--> on ddd")
    assert len(drawn.title) < 200
    assert drawn.legend(0) == [r"\x1b", r"\udcff", "test"]
    content = picture.read_text()
    assert all(line.isprintable() for line in content.split("\n"))
    ElementTree.fromstring(content)
    assert not recwarn.list


@needs_matplotlib
@pytest.mark.parametrize("key", ["loss", "accuracy", "steps"])
def test_what_no_axis_can_show_is_a_gap(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, events = Drawn(monkeypatch), epochs()
    events[1][key] = math.inf
    nnmpi.plot(write(tmp_path / "log", START, *events), "steps", tmp_path / "p.png")
    line = drawn.line(1, 0) if key == "accuracy" else drawn.line(0, 0)
    assert [math.isnan(x + y) for x, y in line] == [False, True, False]


def test_an_epoch_may_lack_the_accuracy(tmp_path: Path) -> None:
    events = epochs()
    del events[0]["accuracy"]
    (run,) = read_log(write(tmp_path / "log", START, *events), "x")
    accuracy = run.epochs["accuracy"].tolist()
    assert math.isnan(accuracy[0])
    assert accuracy[1:] == [e["accuracy"] for e in events[1:]]


def test_runs_in_one_log_are_told_apart_and_another_fit_is_no_other_run(tmp_path: Path) -> None:
    again = [{**event, "epoch": 3 + i} for i, event in enumerate(epochs(), 1)]
    other = {**START, "model": "another"}
    log = write(tmp_path / "log", START, *epochs(2), START, other, *epochs(3), other, *again)
    assert [
        (run.name, run.task.split()[0], len(run.epochs["loss"])) for run in read_logs([log])
    ] == [
        ("log (1)", START["model"], 2),
        ("log (3)", "another", 6),  # as the page counts, which shows the one without epochs too
    ]
    failed = {"event": "failed", "error": "x", "steps": 2}
    log = write(tmp_path / "broken", START, *epochs(2), START, failed, START, *again)
    assert len(read_logs([log])) == 1


def test_a_log_whose_last_line_is_cut_off_is_read(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", START, *epochs(), '{"event": "ep', end="")
    found = read_log(log, "x")[0].epochs
    assert {key: numbers.tolist() for key, numbers in found.items()} == {
        key: [e[key] for e in epochs()] for key in epochs()[0] if key != "event"
    }
    assert [run.name for run in read_logs([log])] == ["log"]


WRONG: dict[str, tuple[Any, dict[str, Any], tuple[str, ...]]] = {
    "missing": ("missing", {}, ("cannot read log missing: No such file", "--log")),
    "a directory": (".", {}, ("cannot read log .: Is a directory",)),
    "bytes": (b"\xff\xfe\x00", {}, ("log is not a log: it is not text",)),
    "a table": ("1,2,3\n4,5,6\n", {}, ("log is not a log: line 1 is no event",)),
    "nested": ("[" * 100_000 + "\n", {}, ("line 1 is no event",)),
    "no start": (epochs(), {}, ("no start event in line 1",)),
    "no epochs": ([START, {"event": "failed"}], {}, ("log has no epoch", "'failed'")),
    "no log": (None, {}, ("no log is given",)),
    "suffix": ([START, *epochs()], {"out": "p.doc"}, ("cannot write p.doc", ".png, .svg or .pdf")),
    "x": ([START, *epochs()], {"x": "time"}, ("x 'time' is not one of epochs, steps, seconds",)),
    "no model": (
        [{"event": "start"}, *epochs()],
        {},
        ("log is not a log of nnmpi: KeyError('model')",),
    ),
    "an older log": (
        [START, *({k: v for k, v in e.items() if k != "seconds"} for e in epochs())],
        {"x": "seconds"},
        ("log log has no seconds; draw it over epochs or steps",),
    ),
}


@needs_matplotlib  # its absence is found first
@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG)
def test_what_cannot_be_drawn_is_a_one_line_error(
    case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content, options, words = case
    logs: Any = "log"
    if content is None:
        logs = []
    elif isinstance(content, bytes):
        Path("log").write_bytes(content)
    elif isinstance(content, list):
        write(Path("log"), *content)
    elif content in ("missing", "."):
        logs = content
    else:
        Path("log").write_text(content)
    with refused(*words):
        nnmpi.plot(logs, **{"out": "p.png", **options})
    assert not Path("p.png").exists()


@needs_matplotlib
def test_a_picture_that_cannot_be_written_is_a_one_line_error(tmp_path: Path) -> None:
    log = write(tmp_path / "log", START, *epochs())
    with refused("cannot write", "No such file", "name another"):
        nnmpi.plot(log, out=tmp_path / "none" / "p.png")


def test_a_matplotlib_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with refused("matplotlib", "pip install 'nnmpi[plot]'"):
        nnmpi.plot(write(tmp_path / "log", START, *epochs()), out=tmp_path / "p.png")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "required: LOG"),
        ("a.jsonl --y 3", "--y"),
        pytest.param("none.jsonl -o p.png", "No such file", marks=needs_matplotlib),
    ],
)
def test_wrong_use_of_the_command_is_one_line(
    arguments: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert err.startswith("nnmpi.plot: ")
    assert words in err

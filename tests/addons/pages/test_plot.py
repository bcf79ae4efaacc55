"""Pictures of logs, and what is said where there is nothing to draw."""

import importlib.util
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers.datafiles import refused
from helpers.runs import rows, small

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.addons.pages.plot import main, read_log, read_logs

needs_matplotlib = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)
START = {"event": "start", "model": "mine", "data": "yours"}


def write(path: Path, *events: Any, end: str = "\n") -> Path:
    path.parent.mkdir(exist_ok=True)
    lines = [e if isinstance(e, str) else json.dumps(e) for e in events]
    path.write_text("\n".join(lines) + end)
    return path


def epochs(n: int = 3) -> list[dict[str, Any]]:
    return [
        {
            "event": "epoch",
            "epoch": i,
            "steps": 7 * i,
            "seconds": 1.5 * i,
            "loss": 1 / i,
            "test_loss": 2 / i,
            "accuracy": 1 - 0.1 / i,
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
    last = [json.loads(line) for line in log.read_text().splitlines()][-3]
    assert (last["event"], last["step"]) == ("step", 12)
    assert drawn.line(0, 0)[-1] == (3, last["loss"])  # of a step: the run has few epochs
    assert drawn.line(0, 1)[-1] == (3, done["test_loss"])
    assert drawn.line(1, 0)[-1] == (3, pytest.approx(done["accuracy"]))


STEPS = [
    {"event": "step", "step": k, "steps": 9, "epoch": k / 9, "seconds": 0.1 * k, "loss": 1 / k}
    for k in range(1, 10)
]
TESTED = {"event": "evaluation", "step": 5, "steps": 9, "epoch": 5 / 9, "seconds": 0.5}
EPOCH = {"event": "epoch", "epoch": 1, "steps": 9, "seconds": 1.0, "loss": 0.4, "test_loss": 0.3}


@needs_matplotlib
def test_a_run_of_few_epochs_is_drawn_by_its_steps_and_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before its first epoch has ended."""
    drawn, events = Drawn(monkeypatch), [*STEPS, {**TESTED, "test_loss": 0.5, "accuracy": 0.7}]
    for end in ([], [{**EPOCH, "accuracy": 0.8}]):
        log = write(tmp_path / "log", START, *events, *end)
        nnmpi.plot(log, out=tmp_path / "p.svg", x="steps")
        assert drawn.line(0, 0) == [(k, 1 / k) for k in range(1, 10)]
        assert drawn.line(0, 1) == [(5, 0.5), (9, 0.3)][: 1 + len(end)]
        assert drawn.line(1, 0) == [(5, 0.7), (9, 0.8)][: 1 + len(end)]
    nnmpi.plot(log, out=tmp_path / "p.svg")
    assert drawn.line(0, 0)[-1] == (1, 1 / 9)


def test_steps_that_are_made_again_are_drawn_once(tmp_path: Path) -> None:
    """After a restore in a callback: to the epoch before, and within an epoch."""
    second = {**EPOCH, "epoch": 2, "steps": 18}
    over = [{**step, "step": 9 + step["step"], "steps": 18} for step in STEPS]
    log = write(tmp_path / "log", START, *STEPS, EPOCH, *over[:5], *STEPS[5:], EPOCH)
    runs = read_log(log, "log")
    assert [run.steps["steps"].tolist() for run in runs] == [[*range(1, 15)], [6, 7, 8, 9]]
    assert [run.epochs["steps"].tolist() for run in runs] == [[9], [9]]
    tested = [{**TESTED, "step": step, "test_loss": 1 / step} for step in (11, 13, 12)]
    log = write(tmp_path / "log", START, *STEPS, EPOCH, *over[:5], *tested, *over[2:], second)
    (run,) = read_log(log, "log")
    assert run.steps["steps"].tolist() == [*range(1, 19)]
    assert run.evaluations["steps"].tolist() == [9, 11, 12, 18]


BY_EPOCHS: dict[str, tuple[list[dict[str, Any]], list[tuple[float, float]]]] = {
    # as with a large --log-every, of which only the first step is reported
    "fewer steps than epochs": ([STEPS[0], *epochs(3)], [(7 * i, 1 / i) for i in range(1, 4)]),
    "nine epochs": ([*STEPS, *epochs(9)], [(9, 1 / 9)]),
    "ten epochs": ([*STEPS, *epochs(10)], [(7 * i, 1 / i) for i in range(1, 11)]),
}


@needs_matplotlib
@pytest.mark.parametrize(("events", "line"), BY_EPOCHS.values(), ids=BY_EPOCHS)
def test_a_run_of_many_epochs_or_few_steps_is_drawn_by_means_over_epochs(
    events: Any, line: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Drawn(monkeypatch)
    nnmpi.plot(write(tmp_path / "log", START, *events), out=tmp_path / "p.svg", x="steps")
    assert drawn.line(0, 0)[-len(line) :] == line


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
    "a table": ("1,2,3\n4,5,6\n", {}, ("log is not a log: line 1 is not a JSON event",)),
    "nested": ("[" * 100_000 + "\n", {}, ("line 1 is not a JSON event",)),
    "no start": (epochs(), {}, ("line 1 is not the start of a run",)),
    "no epochs": ([START, {"event": "failed"}], {}, ("log has no epoch", "'failed'")),
    "no log": (None, {}, ("no log was given",)),
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
        ("log log has no seconds: draw it over epochs or steps",),
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

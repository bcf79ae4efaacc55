"""Loggers write what a run says; the real libraries, offline, and what is in their files."""

import json
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.completion import completed, in_each_shell
from helpers.datafiles import refused
from helpers.programs import python

from nnmpi import Config, Trainer
from nnmpi.addons.pages.loggers import LOGGER_TYPES, Logger
from nnmpi.comm import Comm, comm_self, threads
from nnmpi.io.output import LostOutputError

IRIS = {"model": "iris-mlp", "data": "iris", "epochs": 2}
STEPS = 4  # of two epochs
HAS_PICTURES = find_spec("matplotlib") is not None


def needs(*libraries: str) -> pytest.MarkDecorator:
    lack = [name for name in libraries if not find_spec(name)]
    return pytest.mark.skipif(bool(lack), reason=f"{', '.join(lack)}: not installed")


warnings_of_others = pytest.mark.filterwarnings("ignore")
"""The libraries have some of their own."""


class Kept(Logger):
    """Keeps what it is told."""

    library = "json"

    def begin(self, options: Any) -> None:
        self.told: list[Any] = [options]

    def scalars(self, rows: Any) -> None:
        self.told.append(dict(rows))

    def layout(self, a: Any, step: int) -> None:
        self.told.append(a.ranks)

    def figure(self, name: str, figure: Any, step: int) -> None:
        self.told.append(name)

    def end(self) -> None:
        self.told.append("end")


def trained(*callbacks: Logger, comm: Comm | None = None, **options: Any) -> list[dict[str, Any]]:
    """Trains with these; the events of epochs."""
    events: list[dict[str, Any]] = []

    class Events:
        def on_epoch(self, trainer: Any, event: dict[str, Any]) -> None:
            events.append(event)

    config = Config(**{**IRIS, **options})
    Trainer(config, comm=comm or comm_self(), callbacks=[*callbacks, Events()]).fit()
    return events


def test_a_logger_gets_options_layout_numbers_and_pictures() -> None:
    kept = Kept("here")
    epochs = trained(kept)
    options, ranks, *rows = kept.told
    assert (options["model"], options["ranks"], ranks) == ("iris-mlp", 1, 1)
    assert "save" not in options
    assert rows[-1] == "end"
    assert rows[-2] == "epochs" if HAS_PICTURES else True
    numbers = dict[int, dict[str, float]]()
    for told in rows:
        for step, row in told.items() if isinstance(told, dict) else ():
            numbers.setdefault(step, {}).update(row)
    assert [*numbers] == [1, 2, 3, 4]
    assert all(row.keys() >= {"loss", "lr", "gradient_norm"} for row in numbers.values())
    assert {"step", "steps", "epoch", "evaluation/steps"}.isdisjoint(numbers[2])
    for prefix in ("epoch", "evaluation"):
        assert numbers[2][f"{prefix}/test_loss"] == epochs[0]["test_loss"]
        assert numbers[4][f"{prefix}/accuracy"] == epochs[1]["accuracy"]


def test_what_steps_report_is_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 10 seconds, with an evaluation, and at the end; ranks compare nothing for it."""
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("nnmpi.addons.pages.loggers.time", clock)
    kept, steps = Kept("here"), [{"event": "step", "step": k, "loss": 1 / k} for k in range(1, 6)]
    trainer: Any = SimpleNamespace(is_first=True)
    kept.told, kept._module = [], json
    for event, clock.now in zip(steps, (100.0, 105.0, 111.0, 112.0, 113.0), strict=True):
        kept.on_log(trainer, event)
    assert [[*rows] for rows in kept.told] == [[1], [2, 3]]
    kept.on_evaluate(trainer, {"event": "evaluation", "step": 5, "test_loss": 0.5})
    assert kept.told[-1] == {4: {"loss": 0.25}, 5: {"loss": 0.2, "evaluation/test_loss": 0.5}}
    assert not hasattr(kept, "on_step")


def test_the_first_rank_alone_writes() -> None:
    def on_rank(comm: Comm) -> bool:
        kept = Kept("here")
        trained(kept, comm=comm)
        return hasattr(kept, "told")

    assert threads(2, on_rank) == [True, False]


def tensorboard_values(folder: Path) -> Iterator[tuple[int, Any]]:
    """(step, value) of a file of events: each has a length, its checksum, data, their checksum."""
    from tensorboardX.proto.event_pb2 import Event

    (file,) = folder.glob("events.out.tfevents.*")
    data, at = file.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + length])
        yield from ((event.step, value) for value in event.summary.value)
        at += 16 + length


@needs("tensorboardX")
@warnings_of_others
def test_the_file_of_tensorboard(tmp_path: Path) -> None:
    """Needs no TensorBoard: this one runs wherever tests are installed."""
    epochs = trained(logger=f"tensorboard:{tmp_path}")
    found = [*tensorboard_values(tmp_path)]
    losses = [(step, v.simple_value > 0) for step, v in found if v.tag == "loss"]
    assert losses == [(step, True) for step in range(1, STEPS + 1)]
    accuracy = [(step, v.simple_value) for step, v in found if v.tag == "epoch/accuracy"]
    assert accuracy == [(e["steps"], pytest.approx(e["accuracy"])) for e in epochs]
    texts = {v.tag: v.tensor.string_val[0].decode() for _, v in found if v.tensor.string_val}
    assert "| model | iris-mlp |" in texts["config/text_summary"]
    assert "stage 0 on rank 0" in texts["layout/text_summary"]
    pictures = [v.image.encoded_image_string[:4] for _, v in found if v.tag == "epochs"]
    assert pictures == [b"\x89PNG"] * HAS_PICTURES


@needs("trackio")
def test_what_a_library_says_is_not_in_the_json(tmp_path: Path) -> None:
    options = [f"--{name}={value}" for name, value in IRIS.items()]
    command = ("-m", "nnmpi.train", *options, "--json", "--logger=trackio:flowers")
    run = python(*command, TRACKIO_DIR=str(tmp_path))
    assert run.status == 0, run.err
    assert [json.loads(line)["event"] for line in run.out.splitlines()][-1] == "done"


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (RuntimeError("no such host\nand many more words"), "RuntimeError: no such host"),
        (KeyError("run"), "KeyError: 'run'"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_where_a_library_cannot_write_is_one_line(error: Exception, why: str) -> None:
    class Refuses(Kept):
        def begin(self, options: Any) -> None:
            raise error

    words = rf"^Refuses: cannot write to ht\\x1btp: {why}$"
    with pytest.raises(LostOutputError, match=words):
        trained(Refuses("ht\x1btp"))


@pytest.mark.parametrize("name", LOGGER_TYPES)
def test_a_library_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnmpi.addons.pages.loggers.find_spec", lambda library: None)
    with refused(LOGGER_TYPES[name].library, "pip install 'nnmpi[loggers]'"):
        trained(logger=f"{name}:x")


@in_each_shell
def test_completion_knows_the_kinds(shell: str) -> None:
    assert completed("nnmpi train --logger t", shell) == ["tensorboard:", "trackio:"]

"""Loggers write what a run says; the real libraries, offline, and what is in their files."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused

import nnmpi
from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self, threads
from nnmpi.run.loggers import KINDS, Logger
from nnmpi.run.report import LostOutputError
from nnmpi.train import main

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
    steps = [step for row in rows if isinstance(row, dict) for step in row if "loss" in row[step]]
    assert steps == [1, 2, 3, 4]
    assert rows[1][2]["epoch/test_loss"] == epochs[0]["test_loss"]
    assert rows[3][4]["epoch/accuracy"] == epochs[1]["accuracy"]


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


@needs("mlflow", "sqlalchemy")
@warnings_of_others
def test_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.chdir(tmp_path)  # where its pictures go
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    epochs = trained(nnmpi.loggers.MLflow(uri, experiment="flowers", run_name="one"))
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("flowers").experiment_id])
    assert (run.info.run_name, run.info.status) == ("one", "FINISHED")
    assert run.data.params["optimizer"] == Config(**IRIS).optimizer
    assert run.data.metrics["epoch/test_loss"] == epochs[-1]["test_loss"]
    losses = client.get_metric_history(run.info.run_id, "loss")
    assert [metric.step for metric in losses] == [1, 2, 3, 4]
    files = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert files == {"layout.svg", *["epochs.png"] * HAS_PICTURES}


@needs("trackio")
@warnings_of_others
def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    from trackio import SQLiteStorage, utils

    for module in (utils, __import__("trackio.sqlite_storage").sqlite_storage):
        monkeypatch.setattr(module, "TRACKIO_DIR", tmp_path)
    epochs = trained(nnmpi.loggers.Trackio("flowers", name="one"))
    rows = SQLiteStorage.get_logs("flowers", "one")
    assert [row["step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    test = [row["epoch/test_loss"] for row in rows if "epoch/test_loss" in row]
    assert test == [e["test_loss"] for e in epochs]
    assert any(row["layout"]["_type"] == "trackio.html" for row in rows if "layout" in row)
    assert SQLiteStorage.get_run_config("flowers", "one")["model"] == "iris-mlp"


@needs("trackio")
def test_what_a_library_says_is_not_in_the_json(tmp_path: Path) -> None:
    options = [f"--{name}={value}" for name, value in IRIS.items()]
    command = [sys.executable, "-m", "nnmpi.train", *options, "--json", "--logger=trackio:flowers"]
    env = {**os.environ, "TRACKIO_DIR": str(tmp_path)}
    run = subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=200)
    assert [json.loads(line)["event"] for line in run.stdout.splitlines()][-1] == "done"


def records(file: Path) -> Iterator[Any]:
    """Of a file of Weights & Biases: a header, and records in blocks, as in a log of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole one, or the last part of one
            record = Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


@needs("wandb")
@warnings_of_others
def test_wandb(tmp_path: Path) -> None:
    how = {"mode": "offline", "dir": str(tmp_path)}
    epochs = trained(nnmpi.loggers.WandB("flowers", **how))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    until = time.monotonic() + 60
    while (found := [*records(file)])[-1:] == [] or not found[-1].HasField("exit"):
        assert time.monotonic() < until  # a process of its own writes it, a moment later
        time.sleep(0.1)
    rows, config = list[dict[str, Any]](), dict[str, Any]()
    for record in found:
        items = [*record.history.item]
        rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
        config |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
    assert [row["_step"] for row in rows if "loss" in row] == [1, 2, 3, 4]
    test = [row["epoch/test_loss"] for row in rows if "epoch/test_loss" in row]
    assert test == [pytest.approx(e["test_loss"]) for e in epochs]
    assert config["model"] == "iris-mlp"
    assert list(tmp_path.glob("wandb/*/files/media/html/layout*.html"))


@pytest.mark.parametrize("spec", ["tensorboard", "tensorboard:", "paper:x", ""])
def test_a_logger_that_there_is_not(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--logger", spec]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


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


@pytest.mark.parametrize("name", KINDS)
def test_a_library_that_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nnmpi.run.loggers.find_spec", lambda library: None)
    with refused(KINDS[name].library, "pip install 'nnmpi[loggers]'"):
        trained(logger=f"{name}:x")

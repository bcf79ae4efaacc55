"""The page of runs: what is in it, and how it follows a run."""

import json
import re
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from helpers.datafiles import refused
from helpers.runs import LAYOUTS, but_steps, rows, small

from nnmpi import Config, Trainer, train
from nnmpi.addons.pages import watch_command as watch
from nnmpi.addons.pages.page import as_values, logs_of, read, shown_steps
from nnmpi.addons.pages.runs import staleness
from nnmpi.addons.pages.watch_command import PageServer
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.addons.simulator.drawing.timeline import STYLES, Span
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event


def ran(folder: Path, ranks: int = 4, **options: Any) -> tuple[Path, Path]:
    """The log and the trace of a run on threads."""
    log, trace = folder / "run.jsonl", folder / "trace.json"
    given = {"dp": 2, "pp": 2, "micro_batches": 2, "epochs": 3, "quiet": True, **options}
    config = Config(**given, log=str(log), trace=str(trace), batch_size=35)
    threads.run(ranks, lambda comm: Trainer(config, small, rows(), comm=comm).fit())
    return log, trace


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return ran(tmp_path_factory.mktemp("run"))


def values(*files: Path) -> dict[str, Any]:
    return as_values(logs_of({str(file): read(file) for file in files}))


def events_of(log: Path) -> list[Event]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def write(log: Path, events: list[Event]) -> Path:
    log.write_text("".join(json.dumps(event) + "\n" for event in events))
    return log


# ---- what is in it


SENDS: dict[str, tuple[int, dict[str, Any]]] = {
    **{name: LAYOUTS[name] for name in ("ring", "tp", "3D")},
    "zero 3, verified": (2, {"zero": 3, "verify": True}),
    "a batch an epoch": (2, {"model": "iris-mlp", "data": "iris", "batch_size": 120, "epochs": 2}),
}


@pytest.mark.parametrize(("ranks", "options"), SENDS.values(), ids=SENDS)
def test_ranks_have_sent_what_was_predicted(
    ranks: int, options: dict[str, Any], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    plain = {"allreduce": "ring", "model": "digits-cnn", "epochs": 1, "steps": 3, "batch_size": 32}
    config = Config(**{**plain, **options}, log=str(log), quiet=True)
    threads.run(ranks, lambda comm: Trainer(config, comm=comm).fit())
    start, *_, done = events_of(log)
    assert len(done["measured"]) == ranks
    for kind in start["kinds"]:
        for rank in kind["ranks"]:
            for axis, said in done["measured"][rank]["sent"].items():
                assert said["messages"] == kind["sent"][axis]["messages"], (rank, axis)
                near = pytest.approx(kind["sent"][axis]["bytes"], rel=1e-3)  # of alike ranks
                assert said["bytes"] == near, (rank, axis)
    (run,) = values(log)["runs"]
    sent = [row for row in run["compared"] if row["what"].startswith("sent along")]
    assert {row["error"].strip("+-") for row in sent} == {"0.0%"}


def test_a_page_has_what_was_run_its_curves_and_its_steps(files: tuple[Path, Path]) -> None:
    log, trace = files
    found = values(log, trace)
    (run,) = found["runs"]
    facts = run["facts"]
    assert (run["task"], run["state"]) == ("small on arrays", "done")
    assert facts["ranks"].startswith("4 ranks, pipeline 1f1b")
    assert "dp 2, pp 2" in facts["options"]
    titles = [panel["title"] for panel in found["panels"]]
    assert titles[:3] == ["loss", "accuracy", "learning rate"]
    assert "skipped steps" not in titles  # there were none
    epochs = [event for event in events_of(log) if event["event"] == "epoch"]
    assert run["epochs"]["test_loss"] == [pytest.approx(e["test_loss"], rel=1e-6) for e in epochs]
    assert [block["ranks"] for block in run["blocks"]] == ["ranks 0, 1", "ranks 2, 3"]
    (timeline,) = run["timelines"]
    assert [k for k, *_ in timeline["steps"]] == [*TraceFile.read(trace).steps]
    assert {*timeline["simulated"]["rank"]} == {0, 1, 2, 3}
    kinds = [kind for kind, *_ in timeline["styles"]]
    assert {kinds[i] for i in timeline["simulated"]["kind"]} == {"B", "F", "APPLY"}
    assert len(timeline["simulated"]["rank"]) == 4 * 5
    assert kinds.index("wait") in timeline["measured"]["kind"]


def test_a_page_has_curves_within_epochs(tmp_path: Path) -> None:
    """Those of steps in place of epochs where there are few; those of evaluations with epochs'."""
    log, _ = ran(tmp_path, ranks=2, dp=1, epochs=2, evaluate_every=1, log_every=1)
    events = events_of(log)
    (run,) = values(log)["runs"]
    steps = [event for event in events if event["event"] == "step"]
    assert run["few"]
    assert run["steps"]["steps"] == [1, 2, 3, 4]
    assert run["steps"]["epoch"] == [0.5, 1, 1.5, 2]
    for theirs, ours in (("loss", "loss"), ("gradient_norm", "mean_gradient_norm"), ("lr", "lr")):
        wanted = [pytest.approx(event[theirs], rel=1e-6) for event in steps]
        assert run["steps"][ours] == wanted
    assert run["evaluations"]["steps"] == [1, 2, 3, 4]
    assert run["evaluations"].keys() == {"epoch", "steps", "seconds", "test_loss", "accuracy"}
    assert not any("norm" in line or "step 1 of" in line for line in run["said"])
    cut = events[: next(k for k, event in enumerate(events) if event["event"] == "evaluation")]
    (run,) = values(write(log, cut))["runs"]
    assert (run["state"], run["figures"]["steps"]) == ("running", "1 of 4")
    assert run["epochs"] == {}


def test_colours_of_the_page_are_of_kinds_that_there_are() -> None:
    css = (files_of("nnmpi.addons.pages") / "page.css").read_text(encoding="utf-8")
    coloured = {*re.findall(r"--k-(\w+)", css)}
    assert coloured
    assert coloured <= STYLES.keys()


def test_the_page_of_a_long_trace_shows_steps_on_both_sides_of_the_median() -> None:
    spans = [Span(0, "F", 0, 0, 0.0, 1.0)] * 60_000
    trace = TraceFile(Path("trace.json"), dict.fromkeys(range(20), spans), {}, 1)
    assert trace.median_step() == 10
    assert shown_steps(trace) == range(9, 12)  # 180,000 spans; a fourth step would be too many


@pytest.mark.parametrize("log", [["--log=l.jsonl"], []], ids=["of its log", "without a log"])
def test_a_run_writes_its_page(log: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--model=iris-mlp", "--data=iris", "--epochs=2", "--quiet", "--report=r.html"]
    assert train.main([*options, "--trace=t.json", *log]) == 0
    text = Path("r.html").read_text()
    assert "iris-mlp on iris" in text
    assert '"timelines":[{"name":"t.json"' in text
    assert "uPlot" in text
    assert "Leon Sorokin" in text  # its licence


def test_a_page_that_cannot_be_written_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model=iris-mlp", "--data=iris", "--epochs=1"]
    for path, words in ((tmp_path / "no" / "r.html", "no directory"), (tmp_path, "a directory")):
        assert train.main([*options, f"--report={path}"]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "other").write_text("my notes")
    assert train.main([*options, f"--report={tmp_path / 'other'}"]) == 2
    assert "is not a page" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    ["x", {"epochs": "x"}, {"kinds": [1]}, {"blocks": [{"ranks": "0", "layers": [{"name": 1}]}]}],
)
def test_what_is_no_log_is_a_line(wrong: Any, files: tuple[Path, Path], tmp_path: Path) -> None:
    events: list[Any] = events_of(files[0])
    events[0] = {**events[0], **wrong} if isinstance(wrong, dict) else wrong
    with refused("is not a log"):
        values(write(tmp_path / "log", events))


def test_runs_in_a_file_are_side_by_side_and_traces_are_of_the_last(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    log, trace = files
    both = write(tmp_path / "two.jsonl", events_of(log) * 2)
    runs = values(both, trace, log)["runs"]
    assert [run["name"] for run in runs] == ["two (1)", "two (2)", "run"]
    assert [len(run.get("timelines", [])) for run in runs] == [0, 1, 0]


# ---- while a run goes on


@contextmanager
def watched(*files: Path) -> Iterator[str]:
    with PageServer(0, [*map(str, files)]) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


def asked(url: str, **headers: str) -> Any:
    with urllib.request.urlopen(
        urllib.request.Request(url, headers=headers), timeout=240
    ) as answer:
        return json.loads(answer.read())


def test_a_log_is_followed_from_before_it_is_there(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    log, events = tmp_path / "later.jsonl", but_steps(events_of(files[0]))
    lines = [json.dumps(event) + "\n" for event in events]
    with watched(log, files[1]) as url:
        assert asked(f"{url}data?-1")["runs"] == []
        log.write_text("")
        assert "problem" not in asked(f"{url}data?-1")
        log.write_text(lines[0] + lines[1][:20])
        found = asked(f"{url}data?0")
        assert found["runs"][0]["state"] == "running"
        assert asked(f"{url}data?{found['version']}") == {}
        with log.open("a") as file:
            file.write(lines[1][20:] + lines[2])
        found = asked(f"{url}data?{found['version']}")
        assert found["runs"][0]["epochs"]["epoch"] == [1, 2]
        log.write_text(lines[0])
        assert asked(f"{url}data?x")["runs"][0]["epochs"] == {}
        log.write_text("something else\n")
        assert "is not a log" in asked(f"{url}data?x")["problem"]


def test_a_port_that_cannot_be_had_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with PageServer(0, []) as other:
        for port in (other.server_port, 1 << 16, -1):
            assert watch.main(["run.jsonl", "--port", str(port)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"nnmpi.watch: port {port}: ")


def test_only_this_host_is_answered(files: tuple[Path, Path]) -> None:
    with watched(files[0]) as url:
        for path, host, status in (("", "evil.test", 403), ("x", "localhost:1", 404)):
            with pytest.raises(HTTPError) as error:
                asked(url + path, Host=host)
            assert error.value.code == status
            error.value.close()


def test_the_chart_of_stale_gradients_counts_all_that_are_very_stale_together() -> None:
    assert staleness({"1": {"0": 2}})["rows"] == []
    few = staleness({"1": {"0": 2, "1": 3}, "2": {"2": 1}})
    assert few["names"] == ["0", "1", "2"]
    assert [row["sizes"] for row in few["rows"]] == [[2, 3, 0], [0, 0, 1]]
    many = staleness({"1": {"0": 2, "6": 3, "40": 4}})
    assert many["names"] == ["0", "1", "2", "3", "4", "5", "6 or more"]
    assert [row["sizes"] for row in many["rows"]] == [[2, 0, 0, 0, 0, 0, 7]]

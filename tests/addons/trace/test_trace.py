"""--trace on runs of any layout: the file, and what the last event says."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from helpers.runs import fit

from nnmpi import Config, Trainer, simulate
from nnmpi.addons.simulator.commands.trace import TraceFile
from nnmpi.addons.trace.summary import Seconds
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event
from nnmpi.io.output.messages import as_text

MODEL = "mlp:64-32-32-32-10"


def trace(ranks: int, path: Path, **options: Any) -> tuple[list[Event], list[dict[str, Any]]]:
    """The last events of a run, and what is in its file."""
    given = {"model": MODEL, "epochs": 2, "batch_size": 360, "trace": str(path), **options}

    def run(comm: Comm) -> Event:
        return fit(Trainer(Config(**given), comm=comm))

    results = threads.run(ranks, run)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return results, events


def complete(events: list[dict[str, Any]], rank: int) -> list[dict[str, Any]]:
    """The complete events of a rank, without those in the background."""
    return [e for e in events if e["ph"] == "X" and e["pid"] == rank and e["tid"] == 0]


# ---- runs


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, {"micro_batches": 2}),
        (2, {}),
        (2, {"model": "digits-cnn", "overlap": False, "allreduce": "ring"}),
        (2, {"reproducible": True}),
        (3, {"sync": "ssp", "staleness": 1}),
        (2, {"pp": 2, "micro_batches": 3}),
        (2, {"pp": 2, "micro_batches": 2, "schedule": "gpipe", "recompute": True}),
        (2, {"pp": 2, "micro_batches": 2, "schedule": "interleaved"}),
        (3, {"pp": 3, "micro_batches": 4, "schedule": "zb-h1"}),
        (2, {"pp": 2, "micro_batches": 4, "schedule": "zb-v"}),
        (3, {"pp": 3, "schedule": "pipedream", "batch_size": 90}),
        (4, {"dp": 2, "pp": 2, "micro_batches": 2}),
    ],
    ids=str,
)
def test_a_trace_of_any_layout_is_nested_and_complete(
    ranks: int, options: dict[str, Any], tmp_path: Path
) -> None:
    results, events = trace(ranks, tmp_path / "t.json", **options)
    found = results[0]["trace"]
    workers = range(ranks - (options.get("sync") == "ssp"))
    assert [*found["ranks"]] == [str(r) for r in workers]
    ahead = options["staleness"] + 1 if "sync" in options else 0
    assert 0 <= found["steps"] - results[0]["steps"] <= ahead
    for rank in workers:
        own = complete(events, rank)
        kinds = {e["cat"] for e in own}
        assert {"F", "APPLY", "evaluate"} <= kinds
        check_nesting(own)
        times = found["ranks"][str(rank)]
        assert times["computing"] > 0
        assert min(times.values()) >= -1e-6
    assert ("bubble" in found) == ("pp" in options)
    assert "rank 0" in as_text(results[0])


def check_nesting(own: list[dict[str, Any]]) -> None:
    """Operations do not overlap, and what is within one lies in it, one after the other."""
    spans = [(round(1e3 * e["ts"]), round(1e3 * (e["ts"] + e["dur"])), e["cat"]) for e in own]
    inner = sorted(s for s in spans if s[2] in ("wait", "communicate"))
    outer = sorted(s for s in spans if s[2] not in ("wait", "communicate"))
    for group in (inner, outer):
        assert all(a[1] <= b[0] for a, b in pairwise(group))
    for begin, end, _ in inner:
        assert any(a <= begin and end <= b for a, b, _ in outer)


def test_processes_have_names_and_each_message_an_arrow(tmp_path: Path) -> None:
    _, events = trace(4, tmp_path / "t.json", dp=2, pp=2, micro_batches=2)
    names = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert names[2] == "rank 2 (pp 1, dp 0)"
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    steps = 2 * 4
    assert len(starts) == len(ends) == 2 * 2 * 2 * steps  # pipelines, directions, micro-batches
    for i, end in ends.items():
        assert starts[i]["ts"] <= end["ts"]
        assert {starts[i]["pid"], end["pid"]} in ({0, 2}, {1, 3})


def test_a_run_without_trace_says_nothing_of_it() -> None:
    assert "trace" not in fit(Trainer(Config(model="iris-mlp", data="iris", steps=1)))


# ---- files


def test_a_path_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot write trace .*: there is no directory"):
        trace(2, tmp_path / "absent" / "t.json")
    with pytest.raises(ValueError, match=r"trace .*t.json is also the file of log"):
        trace(1, tmp_path / "t.json", log=str(tmp_path / "t.json"))


def test_the_reader_refuses_other_files_and_steps(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"a": 1}')
    with pytest.raises(ValueError, match="is not a trace of nnmpi"):
        TraceFile.read(path)
    with pytest.raises(ValueError, match=r"cannot read .*absent"):
        TraceFile.read(tmp_path / "absent")
    trace(1, path)
    with pytest.raises(ValueError, match=r"does not have step 8: choose among 0 to 7"):
        TraceFile.read(path).timeline(8)
    assert len(TraceFile.read(path).timeline(2, 3).spans) >= 3 * 3


def complete_event(**changes: Any) -> str:
    event = {"ph": "X", "pid": 0, "ts": 0, "dur": 1, "cat": "F", "args": {"step": 0}}
    return json.dumps({"traceEvents": [{**event, **changes}]})


NO_TRACES = {
    "no events": '{"traceEvents": []}',
    "no time": '{"traceEvents": [{"ph": "X", "pid": 0, "args": {"step": 0}}]}',
    "a word": complete_event(ts="soon"),
    "so many ranks": complete_event(pid=10**9),
    "no rank": complete_event(pid=-1),
}


@pytest.mark.parametrize("text", NO_TRACES.values(), ids=NO_TRACES)
def test_a_file_that_is_no_trace_is_one_line(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    assert simulate.main(["trace", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"nnmpi.simulate: {path} ")
    assert error.removesuffix("\n").isprintable()
    assert len(error) < 500


def test_the_table_of_the_last_event() -> None:
    rows = {"0": Seconds(1, 2, 3, 4)._asdict(), "10": Seconds(1.5, 0, 0.25, 0)._asdict()}
    found = {"measured": 0.25, "simulated": 0.2, "formula": 0.125}
    event = {
        **dict.fromkeys(("accuracy", "loss", "seconds", "samples_per_second"), 1),
        "event": "done",
        "steps": 9,
        "skipped_steps": 0,
        "trace": {"file": "t.json", "steps": 5, "ranks": rows, "bubble": found},
    }
    text = as_text(event).splitlines()
    assert text[1:] == [
        "trace of 5 of 9 steps in t.json, which ui.perfetto.dev shows",
        "seconds  computing  communicating  waiting  other",
        "rank 0       1.000          2.000    3.000  4.000",
        "rank 10      1.500          0.000    0.250  0.000",
        "bubble 25.0%, simulated with these times 20.0%, with equal stages 12.5%",
    ]
    del found["formula"]  # of a schedule of users
    assert as_text(event).endswith("\nbubble 25.0%, simulated with these times 20.0%")

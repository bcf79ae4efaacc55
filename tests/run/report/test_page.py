"""The page of runs: what is in it, and what a browser makes of it."""

import io
import json
import socket
import struct
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit

import pytest
from helpers.browser import MISSING, PATH, Page, browser
from helpers.datafiles import refused
from helpers.runs import LAYOUTS, rows, small

from nnmpi import Config, Trainer, report, train, watch
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.page.sources import as_values, logs_of, read
from nnmpi.run.report import Event, Report
from nnmpi.sim.commands.trace import TraceFile
from nnmpi.watch import Watched

needs_browser = pytest.mark.skipif(PATH is None, reason=MISSING)
MANY = 20_000
HOSTILE = '</script><img src=x onerror=alert(1)><!--"\u2028'


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


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with browser() as made:
        yield made


def written(folder: Path, *files: Path) -> Path:
    out = folder / "run.html"
    assert report.main([*map(str, files), "--out", str(out)]) == 0
    return out


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
    assert {kinds[i] for i in timeline["simulated"]["kind"]} == {"B", "F", "UPDATE"}
    assert len(timeline["simulated"]["rank"]) == 4 * 5
    assert kinds.index("wait") in timeline["measured"]["kind"]


def test_a_plan_and_its_time_are_beside_each_other(tmp_path: Path) -> None:
    log, _ = ran(tmp_path, 2, dp=2, pp=1)
    events = events_of(log)
    events[-1]["plan"] = {"predicted_seconds": 0.5, "measured_seconds": 1.0, "error": -0.5}
    (run,) = values(write(log, events))["runs"]
    (row,) = (row for row in run["compared"] if row["what"] == "time of a step")
    assert (row["text"], row["error"]) == (["500 ms", "1 s"], "+100.0%")


def test_a_run_writes_its_page(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    options = ["--model=iris-mlp", "--data=iris", "--epochs=2", "--quiet", "--report=r.html"]
    assert train.main([*options, "--trace=t.json", "--log=l.jsonl"]) == 0
    text = Path("r.html").read_text()
    assert "iris-mlp on iris" in text
    assert '"timelines":[{"name":"t.json"' in text
    assert "uPlot" in text
    assert "Leon Sorokin" in text  # its licence


def test_a_run_with_a_report_of_its_own_has_a_page(tmp_path: Path) -> None:
    path = tmp_path / "r.html"
    config = Config(model="iris-mlp", data="iris", epochs=2, report=str(path))
    Trainer(config).fit(report=Report(stdout=io.StringIO()))
    assert "iris-mlp on iris" in path.read_text()


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


# ---- in a browser


def charts(page: Page) -> list[bool]:
    """Whether something is drawn on each canvas."""
    script = """[...document.querySelectorAll("canvas")].map((one) =>
        one.getContext("2d").getImageData(0, 0, one.width, one.height).data.some((x) => x > 0))"""
    found: list[bool] = page.value(script)
    return found


def middle(page: Page, selector: str, x: float = 0.5, y: float = 0.5) -> tuple[float, float]:
    """A place of the first such element, on the screen."""
    script = f"""(() => {{ const one = document.querySelector({json.dumps(selector)});
        one.scrollIntoView({{block: "center"}}); const box = one.getBoundingClientRect();
        return [box.left + {x} * box.width, box.top + {y} * box.height]; }})()"""
    left, top = page.value(script)
    return left, top


@needs_browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_all_is_drawn_in_light_and_dark_and_on_a_phone(
    width: int, dark: bool, page: Page, files: tuple[Path, Path], tmp_path: Path
) -> None:
    other = tmp_path / ("long" * 20) / "run.jsonl"  # two have one name, so paths are shown
    other.parent.mkdir()
    write(other, events_of(files[0]))
    page.open(written(tmp_path, *files, other).as_uri(), width, dark=dark)
    panels = page.value("values.panels.length")
    drawn = charts(page)
    assert len(drawn) == panels + 1 >= 6
    assert all(drawn)
    assert page.value("document.documentElement.scrollWidth") <= width
    assert page.value("document.querySelectorAll('.block').length") == 4
    assert page.value("document.querySelectorAll('.pair').length") > 8
    assert page.complaints == []


@needs_browser
def test_hovering_tells_numbers_and_dragging_zooms(
    page: Page, files: tuple[Path, Path], tmp_path: Path
) -> None:
    page.open(written(tmp_path, *files).as_uri())
    legend = "document.querySelector('.chart .u-legend').textContent"
    assert "training\u2013" in page.value(legend)
    page.move(*middle(page, ".chart .u-over", 0.99))
    loss = values(*files)["runs"][0]["epochs"]["loss"][-1]
    page.until(f"{legend}.includes('{loss:.4g}')")
    page.move(*middle(page, ".timeline .u-over", 0.5, 0.06))
    for x in range(1, 100):  # until there is something under it
        page.move(*middle(page, ".timeline .u-over", x / 100, 0.06))
        if page.value("document.querySelector('.tip').offsetWidth"):
            break
    assert page.value("document.querySelector('.tip').offsetWidth") > 0
    assert "rank 0, stage 0" in page.value("document.querySelector('.tip').innerText")
    span = (
        "charts[charts.length - 1].made.scales.x.max - charts[charts.length - 1].made.scales.x.min"
    )
    before = page.value(span)
    x, y = middle(page, ".timeline .u-over", 0.3)
    page.drag(x, y, middle(page, ".timeline .u-over", 0.6)[0])
    page.until(f"({span}) < {0.5 * before}")
    page.value("[...document.querySelectorAll('.timeline button')].pop().click()")
    page.until(f"Math.abs(({span}) - values.runs[0].timelines[0].end) < 1e-6")
    assert page.complaints == []


@needs_browser
def test_axes_and_scales_are_chosen(page: Page, files: tuple[Path, Path], tmp_path: Path) -> None:
    page.open(written(tmp_path, *files).as_uri())
    for name, last in (("steps", 6), ("epochs", 3)):
        script = f"[...document.querySelectorAll('button')].find((b) => b.textContent === '{name}')"
        page.value(f"{script}.click()")
        page.until(f"charts[0].made.data[0].slice(-1)[0] === {last}")
    page.value(
        "[...document.querySelectorAll('button')].find((b) => b.textContent === 'log').click()"
    )
    page.until("charts[0].made.scales.y.distr === 1")
    assert all(charts(page))
    assert page.complaints == []


@needs_browser
def test_hostile_names_stay_text(page: Page, files: tuple[Path, Path], tmp_path: Path) -> None:
    events = events_of(files[0])
    events[0] |= {"model": HOSTILE, "note": HOSTILE, "hosts": {HOSTILE: [0]}}
    events[0]["blocks"][0]["layers"][0]["name"] = HOSTILE
    for event in events[1:-1]:
        event["metrics"] = {HOSTILE: 1.0, "__proto__": 2.0}
    folder = tmp_path / "<img src=x onerror=alert(2)>"
    folder.mkdir()
    log = write(folder / "<b>&amp;.jsonl", events)
    page.open(written(tmp_path, log, files[1]).as_uri())
    assert page.value("document.querySelectorAll('img, b > b').length") == 0
    assert HOSTILE[:30] in page.value("document.querySelector('h1').textContent")
    assert "<b>&amp;" in page.value("document.querySelector('.chip').textContent")
    assert page.value("document.querySelector('.layer').textContent").startswith("</script>")
    assert all(charts(page))
    assert page.complaints == []


@needs_browser
def test_many_events_load(page: Page, files: tuple[Path, Path], tmp_path: Path) -> None:
    """They take about a second, which is measured elsewhere: here, that they load at all."""
    events = events_of(files[0])
    epoch = events[1]
    many = [{**epoch, "epoch": i, "steps": 2 * i, "loss": 1 / i} for i in range(1, MANY + 1)]
    log = write(tmp_path / "long.jsonl", [events[0], *many, events[-1]])
    page.open(written(tmp_path, log).as_uri())
    assert page.value("charts[0].made.data[0].length") == MANY
    assert all(charts(page))
    assert page.complaints == []


# ---- while a run goes on


@contextmanager
def watched(*files: Path) -> Iterator[str]:
    with Watched(0, [*map(str, files)]) as server:
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
    log, lines = tmp_path / "later.jsonl", files[0].read_text().splitlines(keepends=True)
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
    with Watched(0, []) as other:
        for port in (other.server_port, 1 << 16, -1):
            assert watch.main(["run.jsonl", "--port", str(port)]) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"nnmpi.watch: port {port}: ")


def test_an_idle_connection_and_a_reset_one_keep_nobody_waiting(
    files: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    with watched(files[0]) as url:
        where = urlsplit(url).hostname, urlsplit(url).port
        with socket.create_connection(where), socket.create_connection(where) as reset:
            reset.sendall(b"GET /")
            reset.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reset.close()
            assert asked(f"{url}data?-1")["runs"]
        for thread in threading.enumerate():
            if "process_request" in thread.name:
                thread.join(60)
    assert capfd.readouterr().err == ""


def test_only_this_host_is_answered(files: tuple[Path, Path]) -> None:
    with watched(files[0]) as url:
        for path, host, status in (("", "evil.test", 403), ("x", "localhost:1", 404)):
            with pytest.raises(HTTPError) as error:
                asked(url + path, Host=host)
            assert error.value.code == status
            error.value.close()


@needs_browser
def test_a_page_follows_a_run(page: Page, files: tuple[Path, Path], tmp_path: Path) -> None:
    log, lines = tmp_path / "grows.jsonl", files[0].read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2]))
    with watched(log) as url:
        page.open(url)
        page.until("charts.length > 0 && charts[0].made.data[0].length === 1")
        assert "running" in page.value("document.querySelector('.chip').textContent")
        with log.open("a") as file:
            file.write("".join(lines[2:]))
        page.until("charts[0].made.data[0].length === 3")
        page.until("document.querySelector('.chip').textContent.includes('done')")
        assert page.complaints == []
    page.until("document.querySelector('.follows').textContent.startsWith('nobody')")
    page.complaints.clear()  # of addresses that nobody answers
    page.call("Page.navigate", url="about:blank")


@needs_browser
def test_a_run_that_comes_later_is_drawn_beside_another(
    page: Page, files: tuple[Path, Path], tmp_path: Path
) -> None:
    later, lines = tmp_path / "later.jsonl", files[0].read_text().splitlines(keepends=True)
    later.write_text(lines[0])
    with watched(files[0], later) as url:
        page.open(url)
        page.until("charts.length > 0 && charts[0].made.series.length === 1 + 2")
        later.write_text("".join(lines))
        page.until("charts[0].made.series.length === 1 + 4")
        assert all(charts(page))
        assert page.complaints == []
    page.call("Page.navigate", url="about:blank")

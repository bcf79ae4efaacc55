"""`nnmpi.plan`: the layouts that it finds, as text, JSON and SVG, and what it refuses in a line."""

import json
import shlex
from functools import partial
from pathlib import Path

import pytest
from helpers.planning import measured
from helpers.training.laws_arrangement import communicators, only_sends_what_is_said

from nnmpi import Trainer, data, plan, train
from nnmpi.addons.planning.machine import TYPICAL, UnitTimes
from nnmpi.addons.planning.run.measurements import processor
from nnmpi.addons.planning.step_time import StepTime
from nnmpi.collectives.price import Link
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.options.cli import from_layout, with_layout
from nnmpi.options.config import Config

CNN = "--model mnist-cnn --data mnist"


def planned(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert plan.main(shlex.split(text)) == 0
    return capsys.readouterr().out


def test_the_table_has_the_best_ten_and_pure_layouts(capsys: pytest.CaptureFixture[str]) -> None:
    text = planned(f"{CNN} --ranks 8 --nodes 2", capsys)
    head = f"layout ms a step samples/s memory sent messages {' '.join(StepTime._fields)} loses by"
    lines = text.splitlines()
    (at,) = (k for k, line in enumerate(lines) if " ".join(line.split()) == head)
    assert all(line.startswith("--") for line in lines[at + 1 : at + 11])
    assert lines[at + 11] == "with one kind of parallelism only:"
    assert lines[0] == "mnist-cnn on 8 ranks on 2 nodes, 64 samples a step"
    assert "figures of a typical machine" in text
    assert "python -m nnmpi.measure" in text
    assert "examined" in lines[-2]


def test_terms_add_up_and_losers_say_why(capsys: pytest.CaptureFixture[str]) -> None:
    e = json.loads(planned(f"{CNN} --ranks 8 --nodes 2 --json", capsys))
    terms = StepTime._fields
    for row in [*e["best"], *e["pure"].values()]:
        assert row["seconds"] == pytest.approx(sum(row[term] for term in terms))
        assert row["samples_per_second"] == pytest.approx(64 / row["seconds"])
    first, *others = e["best"]
    assert first["why"] == ""
    for row in others:
        if not row["why"]:
            assert row["seconds"] == pytest.approx(first["seconds"])
            continue
        term, more, _ = row["why"].split()
        assert float(more) == pytest.approx(1e3 * (row[term] - first[term]), rel=0.01)
    assert {"dp", "zero 3", "tp"} <= {*e["pure"]}


def test_the_command_of_the_winner_is_one_of_nnmpi_train(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = "--model mlp:64-32-10 --data digits --batch-size 32 --optimizer sgd --momentum 0.9"
    e = json.loads(planned(f"{options} --ranks 4 --memory 100kB --json", capsys))
    mpirun, arguments = e["command"].split(" python -m nnmpi.train ")
    assert mpirun == "mpirun -n 4"
    flags = e["best"][0]["flags"]
    assert arguments.endswith(flags)
    given = vars(train.parser().parse_args(shlex.split(arguments)))
    layout = {name: given[name] for name in e["best"][0]["layout"] if name in given}
    assert layout.items() <= e["best"][0]["layout"].items()
    for name, value in vars(train.parser().parse_args(shlex.split(options))).items():
        assert given.get(name, getattr(Config(), name, value)) == value


MODES = {
    "": 2 * 3 / 4,
    "--sync=local --every=7": 2 * 3 / 4 / 7,
    "--compress=int8": 2 * 3 / 4 * 260 / 256 / 4,
    "--sync=gossip --every=7 --graph=exponential": 2 + 2 * 3 / 4 / 7,
}
"""What each of 4 replicas sends in a step, in units of all parameters."""


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_is_priced_beside_data_parallelism(
    mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "--model mlp:64-256-256-10 --data synthetic:64:10:9999 --batch-size 4096"
    options = f"{model} --ranks 4 --nodes 4 {mode}"
    e = json.loads(planned(f"{options} --json", capsys))
    dp, numbers = e["pure"]["dp"], 65 * 256 + 257 * 256 + 257 * 10
    assert dp["sent_bytes"] == pytest.approx(MODES[mode] * 4 * numbers, rel=1e-2)  # and scalars
    assert mode in e["command"]
    needs = {need["layout"]: need["gbit"]["50%"] for need in e["network"]}
    assert needs[dp["flags"]] > 0
    assert ("data parallelism" in needs) == bool(mode)
    if "local" in mode:
        assert needs[dp["flags"]] < needs["data parallelism"] / 4
        lines = planned(options, capsys).splitlines()
        (head,) = (k for k, line in enumerate(lines) if line.startswith("Gbit/s between nodes for"))
        rows = lines[head + 1 : lines.index("", head)]
        assert [row.split("  ")[0] for row in rows] == [*needs]


# ---- machines


def machine_file(tmp_path: Path, config: Config, **changes: object) -> Path:
    machine = measured(config, TYPICAL._replace(cpu=processor(), ranks=4), UnitTimes(1, 1, 1))
    file = tmp_path / "machine.json"
    file.write_text(machine._replace(**changes).as_json(), encoding="utf-8")
    return file


DIGITS = Config(model="mlp:64-32-10", data="digits")


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("changes", "options", "note"),
    [
        ({}, "", ""),
        ({"cpu": "Z80"}, "", "was measured on Z80, and this is"),
        ({"models": ()}, "", "its units are estimated from 30 billion multiplications a second"),
        ({}, "--dtype float64", "in float64: its units are estimated"),
        ({"updates": {"sgd": 1e-9}}, "", "does not have adam, which counts as the slowest of sgd"),
        ({"ranks": 2}, "", "with 2 ranks at a time, and a node has 4"),
    ],
)
def test_a_machine_that_does_not_fit_is_named(
    changes: dict[str, object],
    options: str,
    note: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = shlex.quote(str(machine_file(tmp_path, DIGITS, **changes)))
    options = f"--model {DIGITS.model} --data digits --ranks 4 --json {options}"
    e = json.loads(planned(f"{options} --machine {file}", capsys))
    assert len(e["notes"]) == bool(note)
    assert note in " ".join(e["notes"])
    if not options.endswith("float64") and not changes:
        assert e["best"][0]["compute"] > 1  # seconds, as was measured


# ---- ways of layers, and types of sums

SLOW = TYPICAL._replace(cpu=processor(), far=Link(1e-6, 1e-8), speed=3e9)
"""Convolutions take long enough to be divided, and so do sums of products."""


def test_a_layout_in_a_file_runs_as_it_was_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions by samples and products by channels; it sends what was said, and equals one
    rank."""
    machine, file = tmp_path / "machine.json", tmp_path / "two words.toml"
    machine.write_text(SLOW.as_json(), encoding="utf-8")
    options = "--model mnist-cnn --data synthetic:1x28x28:10:36 --batch-size 12 --dtype float64"
    text = f"{options} --ranks 2 --nodes 2 --machine {machine} --layout-out '{file}' --json"
    e = json.loads(planned(text, capsys))
    layout = e["best"][0]["layout"]
    assert layout["layout"] == "0=samples,3=samples,7=column,9=row,11=column"
    command = e["command"].partition(" python -m nnmpi.train ")[2]
    words = shlex.split(f"{command} --steps 3 --verify --quiet")
    given = with_layout(vars(train.parser().parse_args(words)))
    assert (given["tp"], given["layout"]) == (2, layout["layout"])
    config = Config(**{name: x for name, x in given.items() if name in vars(Config())})

    def differences(comm: Comm) -> dict[str, float]:
        with Trainer(config, comm=comm) as trainer:
            found: dict[str, float] = trainer.fit()["largest_differences"]
            return found

    found = threads.run(2, differences)[0]
    assert all(x < 1e-10 for name, x in found.items() if name.endswith("_relative"))
    asked = {**from_layout(str(file)), "model": "mnist-cnn", "batch_size": 12}
    images = partial(data.load, "synthetic:1x28x28:10:60")
    with communicators(monkeypatch) as made:
        threads.run(2, only_sends_what_is_said, made, {**asked, "given": images})


# ---- one layout


def test_a_layout_is_explained_beside_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace, options = tmp_path / "trace.json", "--model mlp:64-32-32-10 --data digits"
    given = {"model": "mlp:64-32-32-10", "data": "digits", "steps": 3, "batch_size": 32}
    config = Config(**given, pp=2, micro_batches=2, trace=str(trace))
    threads.run(2, lambda comm: Trainer(config, comm=comm).fit(NullReport()))
    one = f"{options} --batch-size 32 --ranks 2 --explain '--pp 2 --micro-batches 2'"
    e = json.loads(planned(f"{one} --trace {trace} --json", capsys))
    assert e["seconds"] == pytest.approx(sum(part["seconds"] for part in e["parts"]))
    rows = {row["what"]: row for row in e["traced"]}
    assert {"update", "other", "exchanges and waiting"} < rows.keys()
    assert any(row["measured"] > 0 for name, row in rows.items() if name.startswith("forward"))
    more = [abs(row["measured"] - row["predicted"]) for row in e["traced"]]
    assert more == sorted(more, reverse=True)
    text = planned(f"{one} --trace {trace}", capsys)
    assert "waiting for other stages" in text
    assert "beside the trace, the largest difference first" in text
    assert plan.main(shlex.split(f"{one.replace('--ranks 2', '--ranks 4')} --trace {trace}")) == 2
    assert "has 2 ranks, and the layout has 4" in capsys.readouterr().err

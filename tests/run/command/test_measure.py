"""The command `python -m nnmpi.measure`: its file, and what it refuses."""

from pathlib import Path

import pytest

from nnmpi import Config, measure, plan
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.planning.machine import TYPICAL, Machine, read_machine
from nnmpi.run import measuring
from nnmpi.run.setup.setup import set_up

SMALLER = "--model", "mlp:4-3", "--data", "iris"
IRIS = "--model", "iris-mlp", "--data", "iris"


def measured(config: Config, comm: Comm) -> Machine:
    return measuring.measure(set_up(config, comm), comm)


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {"SIZES": (256, 1 << 18), "CALLS": 2, "STEPS": 2, "FLUSHED": 1 << 10}
    for name, value in few.items():
        monkeypatch.setattr(measuring, name, value)


def test_a_plan_knows_what_was_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sums of two ranks, the units of a model at three sizes, and all else that a step takes."""
    config, file = Config(model="iris-mlp", data="iris", batch_size=24), tmp_path / "machine.json"
    machine, _ = threads.run(2, lambda comm: measured(config, comm))
    file.write_text(machine.as_json(), encoding="utf-8")
    assert read_machine(file) == machine
    assert machine.spread > 0
    assert (machine.ranks, machine.far) == (2, TYPICAL.far)
    assert {name.split()[-1] for name in machine.sums} == {"2"}
    assert {*machine.updates} == {"adam"}
    whole, parts = machine.models
    assert (whole.tp, parts.tp) == (1, 2)
    assert [*whole.units] == [3, 12, 24]
    assert all(unit.forward > 0 for units in whole.units.values() for unit in units)
    assert all(unit.forward > 0 for units in parts.units.values() for unit in units)
    assert machine.speed > 0
    assert plan.main([*IRIS, "--batch-size", "24", "--ranks", "2", "--machine", str(file)]) == 0
    text = capsys.readouterr().out
    assert "estimated" not in text
    assert "guess" not in text


def test_small_batches_and_epochs_of_one_step_are_measured() -> None:
    config = Config(model="iris-mlp", data="iris", batch_size=1, steps=1, compress="topk:0.1")
    (machine,) = threads.run(1, lambda comm: measured(config, comm))
    assert [*machine.models[0].units] == [1]
    assert machine.near == TYPICAL.near
    assert [*machine.coding] == ["topk:0.1"]
    assert machine.moving > 0
    whole = Config(model="iris-mlp", data="iris", batch_size=150)
    (machine,) = threads.run(1, lambda comm: measured(whole, comm))
    assert [*machine.models[0].units] == [15, 60, 120]


def test_links_between_nodes_are_measured() -> None:
    config = Config(model="iris-mlp", data="iris")
    first, second = threads.run(2, lambda comm: measured(config, comm), per_node=1)
    assert first.far == second.far != TYPICAL.far
    assert (first.ranks, first.sums) == (1, {})


def test_what_a_file_has_already_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other models and optimizers; a file of another machine is not overwritten."""
    file = str(tmp_path / "machine.json")
    iris = [*IRIS, "--batch-size", "24", "--out", file]
    assert measure.main(iris) == 0
    assert "in micro-batches of 3, 12, 24, written to" in capsys.readouterr().out
    for _ in range(2):
        assert measure.main([*SMALLER, "--optimizer", "sgd", "--out", file]) == 0
    machine = read_machine(file)
    assert capsys.readouterr().out.endswith(f"; {machine.doubt}\n")
    assert ({*machine.updates}, len(machine.models)) == ({"sgd", "adam"}, 2)
    Path(file).write_text(machine._replace(ranks=7).as_json(), encoding="utf-8")
    assert measure.main(iris) == 2

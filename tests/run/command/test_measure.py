"""The command `python -m nnmpi.measure`: its file, when it ends, and what it refuses."""

from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from nnmpi import Config, plan
from nnmpi.addons.planning import measure_command as measure
from nnmpi.addons.planning.machine import TYPICAL, Machine, MeasuredModel, UnitTimes, read_machine
from nnmpi.addons.planning.run import measurements, measuring, network_fit
from nnmpi.addons.planning.run.deadline import Deadline
from nnmpi.addons.planning.run.measurements import processor
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.setup.setup import set_up

SMALLER = "--model", "mlp:4-3", "--data", "iris"
IRIS = "--model", "iris-mlp", "--data", "iris"


def measured(config: Config, comm: Comm, deadline: Deadline | None = None) -> Machine:
    return measuring.measure(set_up(config, comm), comm, deadline or Deadline())


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {
        "SUM_BYTES": (256, 1 << 18),
        "CALLS": 2,
        "STEPS": 2,
        "FLUSHED": 1 << 10,
        "MOST_SECONDS": 1e9,
    }
    for name, value in few.items():
        monkeypatch.setattr(measurements, name, value)
    monkeypatch.setattr(network_fit, "MOST_SECONDS", 1e9)  # as many sizes beside other programs


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


@pytest.mark.parametrize(
    ("ranks", "sizes"), [(1, []), (2, [2]), (3, [3]), (6, [2, 6]), (8, [2, 4, 8]), (12, [2, 4, 12])]
)
def test_groups_that_divide_the_ranks_are_measured(ranks: int, sizes: list[int]) -> None:
    assert threads.run(ranks, measurements.group_sizes) == [sizes] * ranks


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


def test_ranks_that_find_a_file_all_ask_for_their_node(tmp_path: Path) -> None:
    """One that asked alone would wait for the others."""
    file = str(tmp_path / "machine.json")
    given = [*IRIS, "--batch-size", "24", "--out", file, "--within", "0.000001s"]

    def rank(comm: Comm) -> int:
        return measure.command(comm, measure.parser().parse_args(given))

    for _ in range(2):
        assert threads.run(2, rank) == [0, 0]


# ---- a deadline


NEVER = 1 << 30


def until(checks: int, config: Config, ranks: int = 2, per_node: int | None = None) -> Machine:
    """The Machine that ranks measure until so many checks of the deadline, which rank 0 alone
    counts: its clock shows their number, and those of others stand still."""

    def rank(comm: Comm) -> Machine:
        ticks: Callable[[], float] = count().__next__
        clock = (lambda: 0.0) if comm.rank else ticks
        return measured(config, comm, Deadline(checks, clock))

    machines = threads.run(ranks, rank, per_node=per_node)
    assert all(machine == machines[0] for machine in machines)
    return machines[0]


UNTIL = {
    0: ("near", "models", "updates", "step", "moving", "coding", "sums 2", "models 2"),
    20: ("updates", "step", "moving", "coding", "sums 2", "models 2", "spread"),
    60: ("sums 2", "models 2", "spread"),
    150: ("spread",),
}
"""What is missing after so many checks."""


@pytest.mark.parametrize("checks", UNTIL)
def test_measuring_ends_at_its_deadline_with_what_there_is(
    checks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config(model="iris-mlp", data="iris", batch_size=24, compress="int8")
    machine, file = until(checks, config), tmp_path / "machine.json"
    assert (*machine.missing,) == UNTIL[checks]
    assert ("near" in machine.missing) == (machine.near == TYPICAL.near)
    assert bool(machine.sums) == (checks >= 60)
    assert [m.tp for m in machine.models] == {0: [], 20: [1], 60: [1], 150: [1, 2]}[checks]
    assert machine.doubt.startswith("measured twice" if machine.spread else "measured once")
    assert bool(machine.spread) == (checks == 150)
    file.write_text(machine.as_json(), encoding="utf-8")
    assert read_machine(file) == machine
    assert plan.main([*IRIS, "--batch-size", "24", "--ranks", "2", "--machine", str(file)]) == 0
    (note,) = (line for line in capsys.readouterr().out.splitlines() if "no time" in line)
    assert note.startswith(f"note: {file} lacks what there was no time to measure")
    assert all(words in note for words in machine.missing.values())


def test_links_between_nodes_may_be_missing() -> None:
    config = Config(model="iris-mlp", data="iris")
    machine = until(0, config, per_node=1)
    assert machine.missing["far"] == "links between nodes"
    assert machine.far == TYPICAL.far
    assert "far" not in until(NEVER, config, per_node=1).missing


def test_three_ranks_end_too() -> None:
    """The last one has no partner, and so measures no messages."""
    machine = until(5, Config(model="iris-mlp", data="iris"), ranks=3)
    assert "near" in machine.missing


def test_a_file_keeps_what_there_was_no_time_for() -> None:
    config = Config(model="iris-mlp", data="iris", batch_size=24)
    whole, part = until(NEVER, config), until(20, config)
    assert whole.missing == {}
    both = part.joined(whole)
    assert both.missing == {}
    kept = "near", "adding", "sums", "updates", "step", "micro_batch", "moving", "speed", "models"
    of_part = {"near", "adding", "speed", "models"}  # measured again, but not parts of layers
    for name in kept:
        assert getattr(both, name) == getattr(whole, name) or name in of_part, name
    assert {m.tp for m in both.models} == {1, 2}
    assert part.joined(part).missing == part.missing
    assert whole.joined(part) == whole


def test_the_command_says_what_it_had_no_time_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "machine.json")
    arguments = [*IRIS, "--out", file]
    assert measure.main([*arguments, "--within", "0.000001s"]) == 0
    line, last = capsys.readouterr().out.splitlines()
    assert "no units of iris-mlp, written to" in line
    assert last.startswith("no time was left for messages within a node, units of iris-mlp, the")
    assert last.endswith(": give more --within, or measure when idle")


def test_the_command_says_of_a_file_that_is_there_what_it_measured_now(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "machine.json"
    other = MeasuredModel("another graph", 1, "float32", {8: [UnitTimes(1.0, 1.0, 1.0)]})
    known = TYPICAL._replace(cpu=processor(), ranks=1, models=(other,))
    file.write_text(known.as_json(), encoding="utf-8")
    assert measure.main([*IRIS, "--out", str(file), "--within", "0.000001s"]) == 0
    line, late, last = capsys.readouterr().out.splitlines()
    assert "no units of iris-mlp, written to" in line
    assert late.startswith("no time was left for messages within a node, units of iris-mlp, the")
    assert last == f"what {file} had of these before stays there"
    assert read_machine(file).models == (other,)


def test_a_machine_file_whose_missing_is_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    file.write_text(TYPICAL._replace(missing={"near": 3}).as_json(), encoding="utf-8")  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="missing has 3, which is not text"):
        read_machine(file)


def test_a_burst_of_messages_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they took a microsecond, and then, beside other programs, a millisecond each."""
    calls, seconds = count(), count(step=1e-3)
    monkeypatch.setattr(network_fit, "medians", lambda comm, calls: [1e-6])
    monkeypatch.setattr(network_fit, "perf_counter", seconds.__next__)

    def rank(comm: Comm) -> float:
        def carry_out(*_: object) -> None:
            next(calls)
            next(seconds)

        monkeypatch.setattr(comm, "carry_out", carry_out)
        return network_fit.ping_pong(comm, 256)

    assert threads.run(1, rank) == [1e-6 / network_fit.TURNS]
    assert 10 < next(calls) < 30

"""--plan: a run trains with the layout that is found at its start, and says what was predicted."""

from pathlib import Path

import pytest
from helpers.datafiles import refused
from helpers.planning import measured

from nnmpi import Config, Trainer
from nnmpi.addons.planning.machine import TYPICAL, UnitTimes
from nnmpi.addons.planning.run.measurements import processor
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event
from nnmpi.io.output.messages import as_text
from nnmpi.parallel import strategies

MLP = Config(model="mlp:64-32-32-10", data="digits", batch_size=32, steps=6)


def machine_file(tmp_path: Path) -> str:
    machine = TYPICAL._replace(cpu=processor(), ranks=2)
    file = tmp_path / "machine.json"
    file.write_text(measured(MLP, machine, UnitTimes(1e-3, 1e-3, 1e-3)).as_json(), "utf-8")
    return str(file)


def trained(comm: Comm, config: Config) -> tuple[Event, Event, Config]:
    with Trainer(config, comm=comm) as trainer:
        start = trainer.describe()
        assert trainer.requested == trainer.config  # so that it is kept after a loss
        return start, trainer.fit(), trainer.config


def test_a_run_takes_the_layout_that_is_found(tmp_path: Path) -> None:
    config = Config(**{**vars(MLP), "plan": machine_file(tmp_path)})
    (start, done, taken), *_ = threads.run(2, lambda comm: trained(comm, config))
    assert taken.plan is None
    again = threads.run(2, lambda comm: trained(comm, taken))[0][1]
    assert done["parameters_sha256"] == again["parameters_sha256"]
    assert "plan" not in again
    assert start["plan"]["predicted_seconds"] == done["plan"]["predicted_seconds"]
    error = done["plan"]["predicted_seconds"] / done["plan"]["measured_seconds"] - 1
    assert done["plan"]["error"] == pytest.approx(error)
    assert f"plan: {start['plan']['layout']}, chosen among " in as_text(start)
    assert " ms per step, predicted " in as_text(done)


def test_replicas_are_planned_as_they_run(tmp_path: Path) -> None:
    """With local steps, of which none may be measured as a round."""
    config = Config(**{**vars(MLP), "sync": "local", "every": 2, "plan": machine_file(tmp_path)})
    (start, done, taken), *_ = threads.run(2, lambda comm: trained(comm, config))
    assert (taken.sync, taken.dp, done["steps"]) == ("local", 2, 6)
    assert start["plan"]["layout"].startswith("--dp 2")


def test_layouts_fit_into_memory_or_ranks_swap(tmp_path: Path) -> None:
    """In much memory the layout is the one that is found without a limit."""
    plain = Config(**{**vars(MLP), "plan": machine_file(tmp_path), "steps": 2})
    much = Config(**{**vars(plain), "memory": "1GB"})
    found = [threads.run(2, lambda comm, c=c: trained(comm, c))[0][2] for c in (plain, much)]
    assert found[0] == found[1]
    little = Config(**{**vars(plain), "memory": "20kB"})

    def rank(comm: Comm) -> None:
        with pytest.raises((ValueError, RuntimeError), match=r"memory 20kB|another rank"):
            Trainer(little, comm=comm)

    threads.run(2, rank)


def test_what_a_plan_cannot_do_is_refused(tmp_path: Path) -> None:
    with refused("plan auto with pp 2: the plan chooses one"):
        strategies.check(Config(plan="auto", pp=2), 2)

    def rank(comm: Comm) -> None:
        with pytest.raises((ValueError, RuntimeError), match=r"nowhere\.json|another rank"):
            Trainer(Config(**{**vars(MLP), "plan": str(tmp_path / "nowhere.json")}), comm=comm)

    threads.run(2, rank)

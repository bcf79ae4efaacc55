"""Ranks are killed, and the others go on; tests/simulation kills them at any operation."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import turns
from helpers.training import recovered
from helpers.training.acts import KillsAt
from helpers.training.pipelined import digits
from helpers.training.recovered import trainer_of

from nnmpi import Config, Trainer
from nnmpi.addons.recovery.run.recovery import NothingLeftError
from nnmpi.comm import Comm
from nnmpi.io.output import Event, NullReport
from nnmpi.nn import Parameter
from nnmpi.optim import SGD


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (3, {}),
        (4, {"tp": 2}),
        (4, {"pp": 2, "micro_batches": 2}),
        (3, {"fragments": 2, "apply_after": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_lost_replica_leaves_the_mean_of_local_steps(
    ranks: int, layout: dict[str, Any], share: float
) -> None:
    """The others begin its round again, each with the state of its own optimizer; a replica that
    has lost one of its ranks is lost."""
    local = {"sync": "local", "every": 3, "optimizer": "adam"}
    options = {**recovered.COMMON, **recovered.RING, **local, **layout}

    def run(killed: dict[int, int]) -> list[recovered.Left | None]:
        return recovered.run_of(ranks, options, killed)

    wanted, operations = recovered.counted(lambda: run({}))
    left = [rank for rank in run({1: int(share * operations[1])}) if rank is not None]
    assert len(left) == ranks - 1
    for rank in left:
        assert (rank.last["event"], rank.last["steps"]) == ("done", wanted.last["steps"])
        if rank.is_spare:
            continue
        assert [step for step, _ in rank.told.steps] == [step for step, _ in wanted.told.steps]
        assert rank.recovered[0]["lost"] == [1]
        assert rank.last["parameters_sha256"] == left[0].last["parameters_sha256"]
        assert rank.told.steps[-1][1] < 1.2 * wanted.told.steps[-1][1]


@pytest.mark.parametrize(
    ("layout", "killed", "remedy"),
    [
        ({"micro_batches": 3}, [2], "--backup or --save-every"),
        ({"schedule": "pipedream", "clip_norm": None}, [2], "--save-every"),
        ({"micro_batches": 3, "backup": 1}, [1, 2], "--save-every"),
        ({"micro_batches": 3, "save_every": "99"}, [2], "--backup or a shorter --save-every"),
    ],
    ids=str,
)
def test_a_part_that_nobody_has_ends_the_run_with_one_line(
    layout: dict[str, Any], killed: list[int], remedy: str, tmp_path: Path
) -> None:
    if "save_every" in layout:
        layout = {**layout, "checkpoint_dir": str(tmp_path)}

    def fit(comm: Comm) -> str:
        trainer = trainer_of(comm, *(KillsAt(rank, 4) for rank in killed), pp=3, **layout)
        with pytest.raises(NothingLeftError) as error:
            trainer.fit(NullReport())
        return str(error.value)

    left = [text for text in turns.run(3, fit, fault_tolerant=True) if text is not None]
    assert len(left) == 3 - len(killed)
    for text in left:
        assert text.startswith("a rank was lost, and the others cannot continue: ")
        assert f"{recovered.NOTHING_LEFT}: no checkpoint " in text
        assert text.endswith(f"; next time use {remedy}; start again")
        assert "\n" not in text


def test_a_callback_that_was_interrupted_is_called_again() -> None:
    class Evaluates(KillsAt):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.found: list[float] = []

        def on_step(self, trainer: Trainer, event: Event) -> None:
            super().on_step(trainer, event)
            self.found.append(trainer.evaluate().mean_loss)

    def fit(comm: Comm) -> list[float]:
        callback = Evaluates()
        trainer_of(comm, callback).fit(NullReport())
        return callback.found

    first, second, lost = turns.run(3, fit, fault_tolerant=True)
    assert (len(first), first, lost) == (6, second, None)


def test_a_trainer_goes_on_to_work_after_its_run() -> None:
    x = digits().test.x

    def fit(comm: Comm) -> tuple[bool, np.ndarray | str]:
        with trainer_of(comm, dp=2, tp=2) as trainer:
            trainer.fit(NullReport())
            if trainer.is_spare:
                with pytest.raises(ValueError, match="is spare: the layout has no place") as error:
                    trainer.evaluate()
                return trainer.is_first, str(error.value)
            return trainer.is_first, trainer.predict(x)

    left = [one for one in turns.run(4, fit, fault_tolerant=True, killed={0: 400}) if one]
    assert [is_first for is_first, _ in left] == [True, False, False]
    np.testing.assert_array_equal(left[0][1], left[1][1])
    assert isinstance(left[2][1], str)


def test_an_optimizer_of_the_user_and_a_trace_go_on(tmp_path: Path) -> None:
    """What knows the Comm of the ranks knows that of those that are left."""

    def momentum(named: Sequence[tuple[str, Parameter]]) -> SGD:
        return SGD([p for _, p in named], 0.1, momentum=0.9)

    def fit(comm: Comm) -> int:
        options = {**recovered.COMMON, **recovered.RING, "trace": str(tmp_path / "trace.json")}
        config = Config(**options)
        done = Trainer(config, None, digits(), comm, optimizer=momentum).fit(NullReport())
        return int(done["steps"])

    found = turns.run(3, fit, fault_tolerant=True, killed={1: 400})
    assert found == [6, None, 6]


def test_the_next_rank_goes_on_with_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"

    def fit(comm: Comm) -> None:
        trainer_of(comm, log=str(log), quiet=True).fit()

    turns.run(3, fit, fault_tolerant=True, killed={0: 400})
    whole = [json.loads(line) for line in log.read_text().splitlines()]
    but = "failed", "passes"  # a thread that is killed
    events = [event for event in whole if event["event"] not in but]
    kinds = [event["event"] for event in events]
    assert sorted(kinds) == ["done", "epoch", "epoch", "recovered", "start", *["step"] * 6]
    assert [event["step"] for event in events if event["event"] == "step"] == [1, 2, 3, 4, 5, 6]
    assert (kinds[0], kinds[-1]) == ("start", "done")
    assert [event["epoch"] for event in events if event["event"] == "epoch"] == [1, 2]

"""A rank is lost at each moment of a step, or while others go back: what the others go on with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from helpers.training import recovered
from helpers.training.acts import GoesBack, KillsAt, kill_soon, rank_of
from helpers.training.recovered import COMMON, RING, Left

from nnmpi import Trainer, nn
from nnmpi.io.checkpoints.snapshot import Snapshot
from nnmpi.io.output import Event


def with_statistics() -> nn.Module:
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU()),
        *(nn.Dropout(0.3), nn.Linear(6, 10)),
    )


BUILT: dict[str, Any] = {**COMMON, **RING, "build": with_statistics, "optimizer": "adam"}
BUILT = {name: value for name, value in BUILT.items() if name != "model"}
MODES: dict[str, tuple[Mapping[str, Any], set[int]]] = {
    "replicas": (BUILT, {2, 3}),
    "zero 1, backups": ({**BUILT, "zero": 1, "backup": 1, "bucket_mb": 0.001}, {1, 2}),
}
"""With the steps from which the others go on, if one is lost in step 3."""


def left_by(ranks: int, options: Mapping[str, Any], *callbacks: object) -> list[Left | None]:
    return recovered.run_of(ranks, {**options, "callbacks": callbacks}, {})


@pytest.mark.parametrize("mode", MODES)
def test_whenever_a_rank_is_lost_the_others_end_as_if_it_were_not(mode: str) -> None:
    """Whatever of step 3 they had done: forward passes with statistics, some sums, the update. They
    go on from the newest state that they have all of."""
    options, steps = MODES[mode]
    wanted, found = left_by(3, options)[0], set[int]()
    for later in range(1, 40, 5):
        left = left_by(3, options, KillsAt(1, 2, later))
        recovered.check(left, wanted)
        found |= {event["step"] for event in left[0].recovered}
    assert found == steps


def test_an_epoch_is_told_by_those_left_where_a_rank_is_lost_in_its_evaluation() -> None:
    """The sums of its steps are there until it is told."""
    wanted = left_by(3, BUILT)[0]
    for later in range(5, 10):
        left = left_by(3, BUILT, KillsAt(1, 5, later))
        recovered.check(left, wanted)
        assert [event["step"] for event in left[0].recovered] == [5]


class DiesAfterRestore(KillsAt):
    def on_step(self, trainer: Trainer, event: Event) -> None:
        if trainer.run.restored:
            super().on_step(trainer, event)


def test_a_spare_rank_that_has_not_gone_back_takes_part_in_backups(tmp_path: Path) -> None:
    """It takes the place of rank 2, in a session of the same number as that of others: when rank 1
    is lost too, the copies of its part and theirs are one state."""
    options = {**COMMON, "pp": 3, "dp": 1, "micro_batches": 3, "backup": 1}
    with_spare = {**options, "elastic": True, "checkpoint_dir": str(tmp_path)}
    left = left_by(4, with_spare, GoesBack(2, 4), DiesAfterRestore(2, 3), DiesAfterRestore(1, 5))
    assert [event["lost"] for event in left[0].recovered] == [[2], [1, 2]]
    recovered.check(left[:1], left_by(3, options, GoesBack(2, 4))[0])


class StopsAfterGoingBack:
    """A callback: when a rank is lost in step 6, the run goes back to step 2, once; in step 3 it is
    asked to stop."""

    def __init__(self) -> None:
        self._snapshots: dict[int, Snapshot] = {}  # of each rank, which are threads

    def on_step(self, trainer: Trainer, event: Event) -> None:
        comm, step = trainer.comm, event["step"]
        rank = rank_of(comm)
        if step == 2:
            self._snapshots.setdefault(rank, trainer.snapshot())
        if step == 5 and len(comm.members) == 3:
            kill_soon(comm, 2, 3)
        if len(comm.members) == 2 and not trainer.run.restored:
            trainer.restore(self._snapshots[rank])
        elif step == 3 and trainer.run.restored:
            trainer.stop()


def test_a_restore_after_a_loss_makes_new_steps_in_which_ranks_can_ask_for_a_stop() -> None:
    for one in filter(None, left_by(3, {**COMMON, **RING, "epochs": 4}, StopsAfterGoingBack())):
        assert [event["lost"] for event in one.recovered] == [[2]]
        assert (one.last["event"], one.last["steps"] <= 4) == ("stopped", True)

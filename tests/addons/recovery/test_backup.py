"""Backups: ranks and nodes may be lost at any moment; prices; when the next one is due."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from helpers import turns
from helpers.datafiles import refused
from helpers.training.laws_backup import (
    LAYOUTS,
    Kept,
    backups_outlive,
    each_node,
    each_rank,
    left_by,
)

import nnmpi.train
from nnmpi import Config, Trainer
from nnmpi.addons.recovery.parallel.backup import Backups
from nnmpi.comm import Comm
from nnmpi.comm.transport.base import RankLost
from nnmpi.parallel.agreement import gather_objects
from nnmpi.parallel.arrangement.state_on_paper import Holders

FEW = ("zero 1", "zero 3", "stages", "layers", "copies on a node")
SOME = [pytest.param(name, marks=() if name in FEW else pytest.mark.long) for name in LAYOUTS]
"""All layouts; most of them are for --all."""


@pytest.mark.parametrize("name", SOME)
def test_the_others_have_what_a_rank_alone_had(name: str) -> None:
    ranks, options = LAYOUTS[name]
    turns.run(ranks, backups_outlive, options, each_rank)


@pytest.mark.parametrize("name", SOME)
def test_the_other_nodes_have_what_a_node_alone_had(name: str) -> None:
    ranks, options = LAYOUTS[name]
    turns.run(ranks, backups_outlive, options, each_node, per_node=-(-ranks // 2))


def renewed(comm: Comm) -> Kept:
    kept = Kept(comm, LAYOUTS["zero 1 on three"][1], every=1)
    kept.train(2)
    assert kept.backups is not None
    with kept.trainer.gathered_parameters():
        for p in kept.trainer.model.parameters():
            p.data[...] *= 2
    kept.backups.renew(1, None, kept.trainer.session.state())  # not the last version
    kept.backups.renew(2, None, kept.trainer.session.state())
    kept.truth[2] = kept.trainer.session.snapshot().arrays
    return kept


def test_values_written_since_a_backup_are_in_it_when_steps_go_on() -> None:
    """And the version before it is still there."""
    ranks = turns.run(3, renewed)
    found = [(one.backups.held(), one.truth) for one in ranks if one.backups is not None]
    for lost in range(3):
        assert left_by(found, {lost}) == [2, 1]
    for held, _ in found:
        assert [one.version for one in held] == [2, 1]


# ---- a rank is lost in the midst of it


def until_lost(comm: Comm, kept: dict[int, Kept]) -> None:
    # a Trainer that was set up again has fewer ranks
    with suppress(RankLost, ValueError, IndexError):
        kept[comm.rank] = mine = Kept(comm, LAYOUTS["zero 1 on three"][1], every=1)
        mine.train(3)


def lost_at(n: int) -> tuple[int, list[int]]:
    """The version that all had reached when rank 1 was lost at its n-th operation, or -1; and those
    that the others have all of."""
    kept: dict[int, Kept] = {}
    turns.run(3, until_lost, kept, fault_tolerant=True, killed={1: n})
    if len(kept) < 3:
        return -1, []
    reached = min(max(one.truth, default=-1) for one in kept.values())
    found = [(kept[r].backups.held(), kept[r].truth) for r in range(3)]
    return reached, left_by(found, {1})


def test_a_version_is_whole_whenever_a_rank_is_lost() -> None:
    """With a backup of each version: that of two steps before, or a later one."""
    checked = 0
    for n in range(165, 315, 15):
        reached, whole = lost_at(n)
        if reached > 0:
            assert whole[0] >= max(reached - 2, 0), f"operation {n}"
            checked += 1
    assert checked


# ---- refusals


def test_backups_that_nobody_could_use_are_refused() -> None:
    options: dict[str, Any] = {"model": "iris-mlp", "data": "iris", "backup": 5}

    def train(comm: Comm) -> None:
        Trainer(Config(**options), comm=comm).close()

    with refused("backup: this job ends when a rank is lost", "mpirun --with-ft ulfm"):
        turns.run(2, train)
    turns.run(2, train, fault_tolerant=True)
    dry = Config(**options, dry_run=True)
    assert turns.run(2, lambda comm: nnmpi.train.train(dry, comm, early=())) == [0, 0]


# ---- how often


def clocked(comm: Comm, mtbf: str, renews: bool = False) -> list[int]:
    """The versions of which there were backups, where a step takes a second and a look at the clock
    0.01 seconds; if `renews`, the state is asked to be backed up again after each step."""
    now, made = [0.0], list[int]()

    def clock() -> float:
        now[0] += 0.01
        return now[0]

    kept = Kept(comm, LAYOUTS["zero 1"][1], 0, mtbf)
    state = [*kept.trainer.session.state()]
    holders = Holders(gather_objects(comm, [x.on_paper() for x in state]))
    backups = Backups(kept.arrangement, state, holders, comm, clock)
    for version in range(30):
        backups.after_step(version, None, state)
        made += [one.version for one in backups.held()[:1] if one.version == version]
        if renews:
            backups.renew(version, None, state)
        now[0] += 1.0
    backups.close()
    kept.close()
    return made


@pytest.mark.parametrize(("mtbf", "steps"), [("1s", 1), ("1000s", 6)])
def test_without_a_number_the_cost_of_one_says_when_the_next_is_due(mtbf: str, steps: int) -> None:
    """sqrt(2 cost mtbf) seconds, at a cost of 0.02 seconds: two looks at the clock."""
    for made in turns.run(2, clocked, mtbf):
        assert made[:2] == [0, 1]
        assert {*np.diff(made[1:])} == {steps}


@pytest.mark.parametrize("mtbf", ["1s", "1000s"])
def test_a_backup_that_is_repeated_does_not_delay_the_next(mtbf: str) -> None:
    """Also if it is still under way then, as at the end of an epoch: no step has followed it, of
    which the length could be known."""
    wanted = turns.run(2, clocked, mtbf)
    assert turns.run(2, clocked, mtbf, True) == wanted

"""After a loss the steps have the bits of a run that has the new layout from that step on."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import turns
from helpers.training import recovered
from helpers.training.acts import KillsAt, SavesAt
from helpers.training.pipelined import Heard, digits
from helpers.training.recovered import COMMON, LAYOUTS, Left, Reported

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.io.output import NullReport


def saved_at(step: int, directory: Path, ranks: int, config: Config, per_node: int | None) -> None:
    """A run that ends with a checkpoint after a step."""

    def fit(comm: Comm) -> None:
        callbacks = [SavesAt(step, directory, ends=True)]
        Trainer(config, None, digits(), comm, callbacks=callbacks).fit(NullReport())

    turns.run(ranks, fit, per_node=per_node, fault_tolerant=True)


def resumed(directory: Path, ranks: int, config: Config, per_node: int | None = None) -> Left:
    """What the first rank has of a run that goes on from there, on so many ranks of these nodes."""

    def fit(comm: Comm) -> Left | None:
        heard, told = Heard(), Reported()
        part = comm.split(0 if comm.rank < ranks else None)
        if part is None:
            return None
        fewer = replace(config, elastic=True)
        trainer = Trainer(fewer, None, digits(), part, callbacks=[told], resume=directory)
        return Left(told, heard.events, trainer.fit(heard), False, None)

    return turns.run(4, fit, per_node=per_node, fault_tolerant=True)[0]


def deaths(name: str, count: int) -> Iterator[KillsAt]:
    """The last rank that may be killed is, so the others are on the nodes that they were on: in a
    step of which there is a version before, or while others still hear of the last one. About half
    of a run's operations are its start's and its epochs'."""
    victim = recovered.victims(name) - 1
    last, operations = recovered.whole(name)[0].last["steps"], recovered.whole(name)[1][victim]
    rng = np.random.default_rng([count, *name.encode()])
    for within in rng.random(count):
        yield KillsAt(victim, last - 3, int(within * operations / last / 2))


def check(name: str, death: KillsAt, directory: Path) -> None:
    ranks, layout = LAYOUTS[name]
    left = recovered.run(name, {}, callbacks=[death])[0]
    event = left.recovered[0]
    config, per_node = Config(**{**COMMON, **layout}), 2 if name == "two nodes" else None
    saved_at(event["step"], directory, ranks, config, per_node)
    has_bits_since_its_loss(left, resumed(directory, event["ranks"], config, per_node))


def has_bits_since_its_loss(left: Left, wanted: Left) -> None:
    step, again = left.recovered[0]["step"], left.recovered[0]["steps_again"]
    after = [one for one in left.told.steps if one[0] > step + again]
    assert 0 < step <= step + again < left.last["steps"]
    assert after == [one for one in wanted.told.steps if one[0] > step + again]
    assert left.last["parameters_sha256"] == wanted.last["parameters_sha256"]


SOME = ("memory of a node", "pipelines", "slices", "zero 3, backups", "servers")
NAMES = [pytest.param(name, marks=() if name in SOME else pytest.mark.long) for name in LAYOUTS]


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
def test_steps_after_a_loss_have_the_bits_of_the_new_layout(name: str, tmp_path: Path) -> None:
    for death in deaths(name, 1):
        check(name, death, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", LAYOUTS)
def test_steps_after_many_losses_have_the_bits_of_the_new_layout(name: str, tmp_path: Path) -> None:
    for k, death in enumerate(deaths(name, 30)):
        check(name, death, tmp_path / f"{k}")


def test_pipedream_goes_back_to_the_newest_checkpoint(tmp_path: Path) -> None:
    """A stage is on one rank alone, so without a checkpoint the others have nothing to go on from;
    one is whole at the end of the next epoch at the latest."""
    own, other = tmp_path / "own", tmp_path / "other"
    pipedream = {"pp": 2, "cut": "5", "schedule": "pipedream", "clip_norm": None}
    config = Config(**{**COMMON, **pipedream, "steps": 14, "epochs": 3})
    saves = replace(config, checkpoint_dir=str(own), save_every="1 epochs", keep=9)

    def fit(comm: Comm) -> Left:
        heard, told = Heard(), Reported()
        trainer = Trainer(saves, None, digits(), comm, callbacks=[told, KillsAt(1, 12)])
        return Left(told, heard.events, trainer.fit(heard), False, None)

    left, lost = turns.run(2, fit, fault_tolerant=True)
    step = left.recovered[0]["step"]
    assert lost is None
    assert step in (5, 10)
    shutil.copytree(own / f"step-{step:08}", other / f"step-{step:08}")
    has_bits_since_its_loss(left, resumed(other, 1, config))


REPLICAS: dict[str, dict[str, Any]] = {
    "local": {"sync": "local", "every": 2},
    "fragments": {"sync": "local", "every": 3, "fragments": 2, "apply_after": 1},
    "gossip": {"sync": "gossip", "graph": "ring", "every": 2},
}
"""Modes in which each replica has state of its own; what the last one had, others do not take."""


@pytest.mark.parametrize("mode", REPLICAS)
def test_replicas_that_are_left_go_on_as_if_they_were_fewer(mode: str, tmp_path: Path) -> None:
    options = {**COMMON, **recovered.RING, "clip_norm": None, **REPLICAS[mode], "steps": 12}
    death = KillsAt(3, 8, later=9)
    left = recovered.run_of(4, {**options, "callbacks": [death]}, {})[0]
    event = left.recovered[0]
    saved_at(event["step"], tmp_path, 4, Config(**options), None)
    has_bits_since_its_loss(left, resumed(tmp_path, 3, Config(**options)))

"""After a loss the steps have the bits of a run that has the new layout from that step on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.training import recovered
from helpers.training.pipelined import Heard, digits
from helpers.training.recovered import COMMON, LAYOUTS, Left, Told

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.run.report import Event, NullReport


class SavesAt:
    """A callback that writes a checkpoint after a step, and ends the run."""

    def __init__(self, step: int, directory: Path) -> None:
        self._step, self._directory = step, directory

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == self._step:
            trainer.save_checkpoint(self._directory)
            trainer.stop()


def rearranged(name: str, step: int, ranks: int, directory: Path) -> Left:
    """The run that is saved after a step, and goes on from there on fewer ranks."""
    before, layout = LAYOUTS[name]
    per_node = 2 if name == "two nodes" else None
    how: dict[str, Any] = {"per_node": per_node, "fault_tolerant": True}
    config = Config(**{**COMMON, **layout})

    def begin(comm: Comm) -> None:
        callbacks = [SavesAt(step, directory)]
        Trainer(config, None, digits(), comm, callbacks=callbacks).fit(NullReport())

    def go_on(comm: Comm) -> Left | None:
        heard, told = Heard(), Told()
        part = comm.split(0 if comm.rank < ranks else None)
        if part is None:
            return None
        fewer = Config(**{**vars(config), "elastic": True})
        trainer = Trainer(fewer, None, digits(), part, callbacks=[told], resume=directory)
        return Left(told, heard.events, trainer.fit(heard), False, None)

    threads.run(before, begin, **how)
    found = threads.run(before - 1, go_on, **how)[0]
    assert found is not None
    return found


def deaths(name: str, count: int) -> Iterator[dict[int, int]]:
    """The last rank is killed, so the others are on the nodes that they were on."""
    ranks, _ = LAYOUTS[name]
    _, operations = recovered.whole(name)
    rng = np.random.default_rng([count, *name.encode()])
    for share in 0.62 + 0.12 * rng.random(count):
        yield {ranks - 1: int(share * operations[ranks - 1])}


def check(name: str, killed: dict[int, int], folder: Path) -> None:
    left = recovered.run(name, killed)[0]
    assert left is not None
    event = left.recovered[0]
    step = event["step"]
    wanted = rearranged(name, step, event["ranks"], folder / f"{killed}")
    told = step + event["steps_again"]
    after = [one for one in left.told.steps if one[0] > told]
    assert 0 < step <= told < 6
    assert after == [one for one in wanted.told.steps if one[0] > told]
    assert left.last["parameters_sha256"] == wanted.last["parameters_sha256"]


SOME = ("memory of a node", "pipelines", "slices", "zero 3, backups")
NAMES = [pytest.param(name, marks=() if name in SOME else pytest.mark.long) for name in LAYOUTS]


@pytest.mark.parametrize("name", NAMES)
def test_steps_after_a_loss_have_the_bits_of_the_new_layout(name: str, tmp_path: Path) -> None:
    for killed in deaths(name, 1):
        check(name, killed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("name", LAYOUTS)
def test_steps_after_many_losses_have_the_bits_of_the_new_layout(name: str, tmp_path: Path) -> None:
    for killed in deaths(name, 30):
        check(name, killed, tmp_path)

"""What goes on of the state of replicas after a loss: a column of the tables in
docs/local-steps.md and docs/compression.md, of which laws have the others."""

from typing import Any

import pytest
from helpers.training import recovered
from helpers.training.acts import KillsAt
from helpers.training.laws_replica_state import COMMON, MODES, Arrays, arrays, check, table

from nnmpi import Trainer
from nnmpi.io.output import Event
from nnmpi.run.session import Session


class Told(KillsAt):
    """Kills the second of the ranks in step 5, and notes the state of each after step 4."""

    def __init__(self) -> None:
        super().__init__(1, 4, later=3)
        self.states = dict[int, Arrays]()

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if event["step"] == 4:
            self.states[trainer.comm.rank] = arrays(trainer.optimizer)
        super().on_step(trainer, event)


@pytest.mark.parametrize("mode", MODES)
def test_a_loss_leaves_what_the_table_says(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    told, new = Told(), dict[int, Arrays]()
    restore = Session._restore

    def restored(self: Session, *arguments: Any) -> None:
        restore(self, *arguments)
        new[self.comm.rank] = arrays(self.optimizer)

    monkeypatch.setattr(Session, "_restore", restored)
    options = {**COMMON, **MODES[mode], "steps": 8, "callbacks": [told]}
    left = recovered.run_of(4, options, {})[0]
    assert left is not None
    assert left.recovered[0]["step"] == 4
    old, found = ([states[r] for r in sorted(states)] for states in (told.states, new))
    assert (len(old), len(found)) == (4, 3)
    check(mode, "a loss", old, found, left=(0, 2, 3))


def test_the_table_has_all_states() -> None:
    assert len(table()) == 6

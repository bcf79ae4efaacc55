"""A callback of one rank that reads parameters with ZeRO ends all ranks: none waits for it."""

import threading

import numpy as np
import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport

DATA = np.zeros((60, 8), "float32"), np.arange(60) % 3
REFUSED = "1.weight: between steps its values are sharded over 2 ranks along dp"


class Reads:
    """On the first rank alone."""

    def on_step(self, trainer: Trainer, event: Event) -> None:
        if trainer.is_first:
            print(next(trainer.model.parameters()))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_the_error_of_a_rank_ends_all_threads(zero: int) -> None:
    def job(comm: Comm) -> None:
        config = Config(model="mlp:8-7-3", zero=zero, allreduce="ring", steps=3)
        Trainer(config, None, DATA, comm, callbacks=[Reads()]).fit(NullReport())

    with pytest.raises(ValueError, match=REFUSED):
        threads.run(2, job)
    assert threading.active_count() < 3


def test_between_runs_no_rank_updates_its_part_alone() -> None:
    def job(comm: Comm) -> None:
        config = Config(model="mlp:8-7-3", zero=1, allreduce="ring", steps=3)
        with Trainer(config, None, DATA, comm) as trainer:
            trainer.fit(NullReport())
            with pytest.raises(ValueError, match="each rank updates a part of the parameters"):
                trainer.strategy.optimizer.step()

    threads.run(2, job)

"""What is counted of rounds that epochs cut short."""

import pytest

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, thread_ranks
from nnmpi.io.output import NullReport

STEPS = 23
"""Steps of an epoch: 1437 samples in batches of 64."""


def sent(every: int) -> float:
    """The bytes that rank 0 is said to send in an epoch with rounds of so many steps."""

    def run(comm: Comm) -> int:
        config = Config(
            data="digits",
            model="mlp:64-10",
            sync="local",
            every=every,
            epochs=3,
            allreduce="ring",
        )
        with Trainer(config, comm=comm) as trainer:
            trainer.fit(NullReport())
            counted = trainer.strategy.traffic.sent
            assert counted is not None
            return counted["dp"].bytes * STEPS

    return thread_ranks.run(2, run)[0]


def test_an_epoch_is_counted_where_no_round_is_whole() -> None:
    """Epoch 2 has the steps 24 to 46: a round of H = 20 or 30 ends within it, and one with it."""
    of_round = sent(10) * 10 / STEPS
    assert sent(STEPS) == pytest.approx(of_round, rel=0.02)
    for every in (20, 30):
        assert sent(every) == pytest.approx(2 * of_round, rel=0.02)

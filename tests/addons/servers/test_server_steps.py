"""The steps of a parameter server: learning rates, clocks, communicators, parts of one sample."""

from typing import Any

import pytest
from helpers import turns
from helpers.datafiles import refused
from helpers.training.served import (
    Noted,
    clouds,
    fit,
)

import nnmpi
from nnmpi import Config, nn
from nnmpi.addons.servers.exchange import Totals
from nnmpi.addons.servers.server import ClockTable
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm

# ---- clocks


def test_a_batch_of_which_a_worker_has_no_samples_counts_as_its_step() -> None:
    """So the random numbers of a batch do not depend on the worker. Every third batch has one
    sample."""
    begun: list[set[int]] = [set(), set(), set()]  # the server computes nothing
    config = Config(batch_size=2, epochs=4, sync="ssp", staleness=1)

    def rank(comm: Comm) -> None:
        fit(comm, config, lambda: Noted(begun[comm.rank].add), clouds(5))

    turns.run(3, rank)
    _, some, every = sorted(begun, key=len)
    assert every >= {0, 1, 2, 3, 4}
    assert some >= {0, 1, 3, 4}
    assert not any(step % 3 == 2 for step in some)


def test_losses_have_the_same_bits_whichever_worker_is_first() -> None:
    def totals(order: list[int]) -> Totals:
        table = ClockTable(3, 0)
        table.begin(0, 6)
        for _ in range(2):
            for w in order:
                table.pushed(w, 8, 8, (0.1, 0.2, 0.3)[w], stop=False)
        return table.totals

    assert totals([0, 1, 2]) == totals([2, 1, 0]) == totals([1, 2, 0])


# ---- parts of one sample


def normed() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


REFUSED = [
    (
        {"batch_size": 3, "sync": "asp"},
        "a batch of 3 is cut into 3 x 1 parts (workers x micro-batches),",
    ),
    (
        {"batch_size": 47, "sync": "asp", "micro_batches": 2},
        "a batch of 5 is cut into 3 x 2 parts ",
    ),
    ({"batch_size": 79, "sync": "ssp", "staleness": 1, "steps": 2}, "a batch of 3 is cut"),
    ({"batch_size": 239, "sync": "asp"}, "a batch of 1 is left; use another"),
]


@pytest.mark.parametrize(("options", "says"), REFUSED, ids=str)
@pytest.mark.parametrize("servers", [1, 2])
def test_a_worker_with_one_sample_is_refused_before_the_first_step(
    options: dict[str, Any], says: str, servers: int
) -> None:
    begun: list[int] = []

    class Watched(nn.Sequential):
        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            begun.extend([1] * (self.training and recording.get() is True))  # not set-up
            return super().forward(x)

    def rank(comm: Comm) -> None:
        config = Config(epochs=2, **{"micro_batches": 1} | options, servers=servers)
        words = "BatchNorm1d needs more than one sample: of 240", says, "another --batch-size"
        with refused(*words):
            fit(comm, config, lambda: Watched(*normed().children()), clouds(240))

    turns.run(3 + servers, rank)
    assert not begun

"""What ranks share is given back at the end of a run, and what users look at then is theirs."""

from typing import Any

import numpy as np
import pytest
from helpers.comm.counted import Counted
from helpers.training.served import IRIS, clouds

from nnmpi import Config, Trainer
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import NullReport
from nnmpi.nn.models import mlp

SHARES: list[tuple[dict[str, Any], set[str]]] = [
    ({"allreduce": "shared"}, {"split", "shared", "node_memory"}),
    ({"allreduce": "ring"}, {"split"}),
    ({"allreduce": "auto"}, {"split", "shared", "node_memory"}),
    ({"allreduce": "shared", "verify": True}, {"split", "shared", "node_memory"}),
    ({"reproducible": True}, {"split"}),
    ({"servers": 1}, {"split"}),
    ({"servers": 2, "sync": "asp"}, {"split"}),
    ({"backup": 1}, {"split"}),
]


@pytest.mark.parametrize(("options", "kinds"), SHARES, ids=range(len(SHARES)))
@pytest.mark.parametrize("runs", [True, False], ids=["run", "closed"])
def test_all_memory_and_communicators_are_given_back_once(
    options: dict[str, Any], kinds: set[str], runs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)

    def rank(comm: Comm) -> None:
        trainer = Trainer(Config(**IRIS, **options, steps=2), comm=comm)
        trainer.fit(NullReport()) if runs else trainer.close()
        trainer.close()

    threads.run(4, rank, fault_tolerant="backup" in options)
    assert counted.kinds == kinds
    assert not counted.left


@pytest.mark.parametrize("allreduce", ["shared", "ring"])
@pytest.mark.parametrize("per_node", [None, 1])
def test_the_gradients_of_the_last_step_can_be_read_after_the_run(
    allreduce: str, per_node: int | None
) -> None:
    """They are the sums over all ranks."""

    def rank(comm: Comm) -> list[np.ndarray]:
        config = Config(batch_size=40, steps=2, dtype="float64", allreduce=allreduce)
        trainer = Trainer(config, lambda: mlp(6, 8, 3), clouds(120), comm)
        trainer.fit(NullReport())
        return [np.array(p.grad) for p in trainer.model.parameters()]

    (wanted,) = threads.run(1, rank)
    for found in threads.run(3, rank, per_node=per_node):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-15)

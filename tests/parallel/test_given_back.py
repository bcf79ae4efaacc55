"""What ranks share is given back at the end of a run, and what users look at then is theirs."""

import inspect
from collections.abc import Generator
from typing import Any

import numpy as np
import pytest
from helpers.comm.counted import Counted
from helpers.training.served import IRIS, clouds

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.data import Loader
from nnmpi.nn.models import mlp
from nnmpi.run.report import NullReport

SHARES: list[tuple[dict[str, Any], set[str]]] = [
    ({"allreduce": "shared"}, {"split", "shared", "node_memory"}),
    ({"allreduce": "ring"}, {"split"}),
    ({"allreduce": "auto"}, {"split", "shared", "node_memory"}),
    ({"allreduce": "shared", "verify": True}, {"split", "shared", "node_memory"}),
    ({"reproducible": True}, {"split"}),
    ({"servers": 1}, {"split"}),
    ({"servers": 2, "sync": "asp"}, {"split"}),
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

    threads.run(4, rank)
    assert counted.kinds == kinds
    assert not counted.left


class Begun:
    """The batches that ranks have begun to load; a thread may gather those to come."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.loads: list[Generator[Any, None, None]] = []
        loads = Loader.loads

        def noted(*arguments: Any, **named: Any) -> Generator[Any, None, None]:
            self.loads.append(loads(*arguments, **named))
            return self.loads[-1]

        patch.setattr(Loader, "loads", noted)

    @property
    def states(self) -> set[str]:
        return {inspect.getgeneratorstate(one) for one in self.loads}


HOW = [{}, {"servers": 1}, {"servers": 1, "sync": "asp"}]


@pytest.mark.parametrize("options", HOW, ids=str)
def test_a_run_that_ends_early_leaves_no_loader_behind(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = Begun(monkeypatch)

    def rank(comm: Comm) -> Trainer:
        trainer = Trainer(Config(**IRIS, **options, steps=2), comm=comm)  # of 3 in an epoch
        trainer.fit(NullReport())
        return trainer

    ranks = threads.run(3, rank)
    assert len(begun.loads) >= len(ranks)
    assert begun.states == {inspect.GEN_CLOSED}


@pytest.mark.parametrize("options", HOW, ids=str)
def test_a_run_that_fails_leaves_no_loader_behind(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, kept = Begun(monkeypatch), []

    class Fails(nn.Linear):
        def forward(self, x: nnmpi.Tensor, relu: bool = False) -> nnmpi.Tensor:
            if self.training and begun.loads:  # not before the run
                raise KeyError("no more of this")
            return super().forward(x)

    def rank(comm: Comm) -> None:
        kept.append(Trainer(Config(**options), lambda: Fails(6, 3), clouds(120), comm))
        kept[-1].fit(NullReport())

    with pytest.raises(KeyError):
        threads.run(3, rank)
    assert len(kept) == 3
    assert begun.loads
    assert begun.states == {inspect.GEN_CLOSED}


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

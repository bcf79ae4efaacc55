"""Losses that end above where they began, or are not finite: which runs have diverged."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.run import end
from nnmpi.run.end import DivergedError

HEALTHY = {
    "falls": (2.3, 0.1, 0.2),
    "falls from far up, as of raw targets": (1e12, 1e9, 1e9),
    "overfits": (2.3, 1e-9, 40.0),
    "begins at 0, as of exact weights": (0.0, 30.0, 25.0),
    "begins below 0, as of a density": (-3.0, 12.0, 11.0),
    "falls below 0": (1.0, -1e12, -1e12),
    "squared returns of an agent that learns": (0.01, 2.5e5, 2.6e5),
    "one bad step": (2.3, 1e15, 2.1),
    "test samples unlike the others": (2.3, 0.5, 1e8),
    "no step was made": (math.inf, 1e9, 1e9),
}
DIVERGED = {
    "of classes": (2.3, 3.6e8, 1.9e8),
    "begins near 0": (1e-6, 1.1e6, 1.1e6),
    "begins below 0": (-3.0, 2e6, 2e6),
    "of raw targets": (1e12, 2e18, 2e18),
}


def check(first: float, last: float, test: float) -> None:
    run = SimpleNamespace(first_loss=first, metrics={"loss": last, "test_loss": test})
    session = SimpleNamespace(optimizer=SimpleNamespace(param_groups=[{"lr": 0.5}]))
    end.check_rise(SimpleNamespace(run=run, session=session, comm=comm_self()))


@pytest.mark.parametrize("case", HEALTHY)
def test_a_healthy_run_has_not_diverged(case: str) -> None:
    check(*HEALTHY[case])


@pytest.mark.parametrize("case", DIVERGED)
def test_a_loss_far_above_where_it_began_has_diverged(case: str) -> None:
    with pytest.raises(end.DivergedError, match=r"with --lr 0\.5; try --lr 0\.05, --clip-norm 1"):
        check(*DIVERGED[case])


COMMON: dict[str, Any] = {
    "model": "mlp:64-12-10",
    "dtype": "float64",
    "batch_size": 24,
    "epochs": 2,
    "allreduce": "ring",
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loss_that_is_not_finite_changes_nothing_though_its_gradient_is(ranks: int) -> None:
    class Follows:
        def __init__(self) -> None:
            self.steps, self.values = 0, list[bytes]()

        def on_step(self, trainer: Trainer, event: Event) -> None:
            self.steps = event["step"]
            self.values = [p.numpy().tobytes() for p in trainer.model.parameters()]

    def rank(comm: Comm) -> None:
        heard = Follows()

        def loss(y: Tensor, labels: Any) -> Tensor:
            is_third = heard.steps == 2
            return nn.functional.cross_entropy(y, labels) + (np.inf if is_third else 0.0)

        config = Config(**COMMON, compile=False)
        trainer = Trainer(config, None, digits(), comm, callbacks=[heard], loss=loss)
        with pytest.raises(DivergedError, match="step 3"):
            trainer.fit(NullReport())
        assert [p.numpy().tobytes() for p in trainer.model.parameters()] == heard.values

    threads.run(ranks, rank)

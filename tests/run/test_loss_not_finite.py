"""A loss of the user's own that is not finite changes nothing."""

from typing import Any

import numpy as np
import pytest
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.io.output import Event, NullReport
from nnmpi.run.end import DivergedError

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

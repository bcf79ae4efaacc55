"""Where and how often forward hooks run, on ranks that are threads."""

import pytest
from helpers.training.pipelined import digits

from nnmpi import Config, Trainer, nn
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads


def test_a_model_with_hooks_of_its_own_cannot_be_cut() -> None:
    def rank(comm: Comm) -> None:
        def build() -> nn.Sequential:
            model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
            model.register_forward_hook(lambda m, args, y: None)
            return model

        Trainer(Config(pp=2), build, digits(), comm)

    with pytest.raises(ValueError, match="the model: it has hooks, so it is one layer"):
        threads.run(2, rank)

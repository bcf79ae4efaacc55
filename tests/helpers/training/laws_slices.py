"""Reproducible runs, on any number of ranks."""

import hashlib
from functools import partial
from typing import Any, NamedTuple

from helpers.once import by_first
from helpers.sample import one_in
from helpers.training.pipelined import Heard

from nnmpi import Config, Trainer
from nnmpi.comm import Comm, comm_self

RUNS: dict[str, dict[str, Any]] = {
    # 120 samples: batches of 50, 50 and 20
    "iris": {"model": "iris-mlp", "data": "iris", "batch_size": 50, "clip_norm": 0.5, "steps": 9},
    # BatchNorm, Dropout, and 1437 samples: the last batch has 29
    "digits": {"batch_size": 64, "clip_norm": 2.0, "steps": 24},
    # 1437 samples: the last batch has 7, so that some slices have one sample and some have none
    "few": {"batch_size": 130, "steps": 12},
}


class Trained(NamedTuple):
    """The bits of a run: of parameters and buffers, of each step's loss, and on the test split."""

    state: str
    losses: list[str]
    test: list[str]
    buffers: int  # of gradients


def trained(comm: Comm, name: str, slices: int, **options: Any) -> Trained:
    """One of RUNS, on all ranks of comm."""
    config = {"reproducible": True, "slices": slices, "epochs": 50, **RUNS[name], **options}
    if not config["reproducible"]:
        del config["slices"]
    trainer, heard = Trainer(Config(**config), comm=comm), Heard()
    result = trainer.fit(heard)
    digest = hashlib.sha256()
    for value in trainer.model.state_dict().values():
        digest.update(value.numpy().tobytes())
    assert len(heard.losses) == result["steps"] == config["steps"]
    bits = [loss.hex() for loss in heard.losses]
    test = [result[name].hex() for name in ("test_loss", "accuracy")]
    return Trained(digest.hexdigest(), bits, test, result.get("gradient_buffers", 1))


def runs_have_the_bits_of_one_rank(comm: Comm) -> None:
    for name in one_in(2, RUNS, "bits"):
        one = by_first(comm, partial(trained, comm_self(), name, 8))
        assert trained(comm, name, 8)[:-1] == one[:-1]

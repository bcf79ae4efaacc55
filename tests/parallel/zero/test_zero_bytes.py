"""ZeRO beside its formulas: bytes that each rank holds; test_arranged has those that it sends."""

from typing import Any

import numpy as np
import pytest

from nnmpi import Config, Trainer
from nnmpi.addons.planning.paper.rank import memory
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads

LAYERS = 9
MODEL = "mlp:" + "-".join(["128"] * LAYERS + ["16"])
RNG = np.random.default_rng(0)
DATA = RNG.standard_normal((400, 128)).astype("float32"), np.arange(400) % 16
HELD = {
    0: lambda d: 16.0,
    1: lambda d: 8 + 8 / d,
    2: lambda d: 4 + 12 / d,
    3: lambda d: 16 / d,
}
"""Bytes of a parameter in float32 with Adam, by the stage of ZeRO."""


def trainer(comm: Comm, zero: int, **options: Any) -> Trainer:
    """Every layer is a bucket of its own."""
    plain = {"model": MODEL, "batch_size": 32, "epochs": 1, "bucket_mb": 0.05}
    sums = {"allreduce": "ring", "optimizer": "adam", "zero": zero}
    return Trainer(Config(**{**plain, **sums, **options}), None, DATA, comm)


def said(comm: Comm, zero: int, **options: Any) -> tuple[float, int]:
    """Bytes of a parameter that this rank holds, and those of slots; test_arranged holds them to
    what a run has."""
    t = trainer(comm, zero, **options)
    found = memory(t.arrangement, comm.rank, 32)
    held = found.parameters + found.gradients + found.optimizer
    n = sum(p.size for p in t.model.parameters())
    t.close()
    return held / n, found.slots


@pytest.mark.parametrize("zero", HELD)
@pytest.mark.parametrize("d", [2, 4])
def test_bytes_held_are_those_of_the_formula(zero: int, d: int) -> None:
    for held, slots in threads.run(d, said, zero):
        assert held == pytest.approx(HELD[zero](d), rel=0.01)
        assert bool(slots) == (zero > 1)


@pytest.mark.parametrize("d", [2, 4])
def test_memory_that_a_node_shares_counts_once(d: int) -> None:
    """16 + 4 d bytes in all: one copy and its sums and state, and gradients of each rank."""
    ranks = threads.run(d, lambda comm: said(comm, 1, allreduce="shared"))
    assert sum(held for held, _ in ranks) == pytest.approx(16 + 4 * d, rel=0.01)

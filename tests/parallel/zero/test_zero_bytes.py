"""ZeRO beside its formulas: bytes that each rank holds; test_arranged has those that it sends."""

import gc
import mmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from nnmpi import Config, Trainer, blas
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.parallel.arrangement.memory import memory
from nnmpi.parallel.stores import LocalStore
from nnmpi.parallel.zero.store import ShardedStore

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


def store_of(t: Trainer) -> LocalStore:
    store = t.optimizer.parameters[0].store
    assert isinstance(store, LocalStore)
    return store


# ---- memory


class Bytes(NamedTuple):
    """What a rank holds."""

    parameters: int
    held: int
    slots: int
    largest: int  # bucket


def held(comm: Comm, zero: int) -> Bytes:
    t = trainer(comm, zero)
    for _, _ in zip(range(2), t.strategy.steps(t.train, t.state), strict=False):
        pass
    store = store_of(t)
    n = sum(p.size for p in store.parameters)
    state = sum(array.nbytes for array in t.optimizer.state.values())
    total = store.parameter_bytes() + store.gradient_bytes() + state
    buckets = store.buckets if isinstance(store, ShardedStore) else []
    longest = max((bucket.stop - bucket.start for bucket in buckets), default=0)
    found = Bytes(n, total, store.slot_bytes(), 4 * longest)
    t.close()
    return found


@pytest.mark.parametrize("zero", HELD)
@pytest.mark.parametrize("d", [2, 4])
def test_bytes_held_are_those_of_the_formula(zero: int, d: int) -> None:
    slots = {0: 0, 1: 0, 2: 2, 3: 4}[zero]
    for found in threads.run(d, lambda comm: held(comm, zero)):
        assert found.held / found.parameters == pytest.approx(HELD[zero](d), rel=0.01)
        assert found.slots <= slots * found.largest
        assert bool(found.slots) == bool(slots)


def test_memory_that_a_node_shares_counts_once() -> None:
    """16 + 4 d bytes in all: one copy and its sums and state, and gradients of each rank."""

    def node(comm: Comm) -> Bytes:
        return held_by(Trainer(Config(model=MODEL, zero=1, allreduce="shared"), None, DATA, comm))

    def held_by(t: Trainer) -> Bytes:
        store = store_of(t)
        state = sum(array.nbytes for array in t.optimizer.state.values())
        total = store.parameter_bytes() + store.gradient_bytes() + state
        found = Bytes(sum(p.size for p in store.parameters), total, store.slot_bytes(), 0)
        t.close()
        return found

    for d in (2, 4):
        ranks = threads.run(d, node)
        whole = sum(rank.held for rank in ranks) / ranks[0].parameters
        assert whole == pytest.approx(16 + 4 * d, rel=0.01)


def test_memory_that_only_set_up_uses_does_not_stay_resident() -> None:
    """Set-up draws whole values: 8 bytes a parameter with their gradients, on each rank."""
    wide = "mlp:128-" + "512-" * 13 + "16"
    gc.collect()
    blas.release_memory()
    before = resident()

    def grown(comm: Comm) -> tuple[int, int]:
        t = trainer(comm, 3, model=wide)
        comm.barrier()
        found = resident() - before, memory(t.arrangement, comm.rank, 32).total
        comm.barrier()
        t.close()
        return found

    (found, one), (_, other) = threads.run(2, grown)
    assert found < 1.05 * (one + other)


def resident() -> int:
    """Bytes of the pages of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

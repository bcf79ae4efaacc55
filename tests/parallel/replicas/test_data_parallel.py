"""Data parallelism in parts: shares, buckets, the rules behind auto, and lists as values."""

from typing import Any

import numpy as np
import pytest
from helpers.datafiles import refused

import nnmpi
from nnmpi import Config, Trainer, nn
from nnmpi.arrays.kernels.steps import BLOCK_OF_SQUARES
from nnmpi.comm import Comm
from nnmpi.comm import thread_ranks as threads
from nnmpi.comm.allreduce.dispatch import NAMES
from nnmpi.data.loader import BatchSplit
from nnmpi.io.output import Event, NullReport
from nnmpi.options.config import ALLREDUCES
from nnmpi.parallel.stores.local import squares


def test_the_names_of_the_command_are_those_of_comm() -> None:
    assert {*ALLREDUCES} == {"auto", *NAMES}


# ---- who computes what


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 5])
def test_parts_make_up_the_batch(n: int, ranks: int, micro_batches: int) -> None:
    """Each micro-batch is cut over ranks, in order; none of them is empty."""
    rows = np.arange(100, 100 + n)
    shares = [BatchSplit(micro_batches, ranks, r)(rows) for r in range(ranks)]
    assert {len(parts) for parts in shares} == {min(micro_batches, n)}
    whole = [np.concatenate(parts) for parts in zip(*shares, strict=True)]
    np.testing.assert_array_equal(np.concatenate(whole), rows)
    assert min(map(len, whole)) > 0
    for parts in (whole, *zip(*shares, strict=True)):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


# ---- buckets

COMM = threads.comm_self()


def test_parameters_are_laid_out_as_they_are_used() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            self.last, self.idle, self.first = nn.Linear(5, 3), nn.Linear(2, 2), nn.Linear(4, 5)

        def forward(self, x: nnmpi.Tensor) -> nnmpi.Tensor:
            y: nnmpi.Tensor = self.last(self.first(x))
            return y

    trainer = Trainer(Config(), Backwards, (np.zeros((9, 4)), np.arange(9) % 3), COMM)
    model = trainer.model
    names = {id(p): name for name, p in model.named_parameters()}
    found = [names[id(p)] for p in trainer.optimizer.parameters]
    assert found[:2] == ["idle.weight", "idle.bias"]
    assert {*found[2:4]} == {"first.weight", "first.bias"}
    assert {*found[4:]} == {"last.weight", "last.bias"}
    assert not any(p.has_grad for p in model.parameters())


# ---- rules


def started(comm: Comm, **options: Any) -> dict[str, Any]:
    config = Config(model="iris-mlp", data="iris", steps=1, **options)
    trainer = Trainer(config, comm=comm)
    event: Event = trainer.fit(NullReport())
    return {**trainer.describe(), "sha": event["parameters_sha256"]}


@pytest.mark.parametrize(
    ("p", "per_node", "how"),
    [(2, 2, "shared"), (4, 2, "hierarchical"), (3, 2, "hierarchical"), (2, 1, "doubling")],
)
def test_auto_goes_by_the_nodes(p: int, per_node: int, how: str) -> None:
    ended = threads.run(p, started, per_node=per_node)
    names = {t["allreduce"] for t in ended}
    assert names == {how}


# ---- one order of additions for all copies: 3 x 2 ranks, of which a node has three


def test_auto_takes_a_ring_where_nodes_cut_groups_of_dp_unlike() -> None:
    ended = threads.run(6, lambda comm: started(comm, dp=3, tp=2), per_node=3)
    assert [t["allreduce"] for t in ended] == ["ring"] * 6
    ended = threads.run(6, lambda comm: started(comm, dp=3, tp=2), per_node=2)
    assert [t["allreduce"] for t in ended] == ["ring"] * 6  # one rank a node along dp
    ended = threads.run(6, lambda comm: started(comm, dp=3, tp=2, order="dp,tp,pp"), per_node=3)
    assert [t["allreduce"] for t in ended] == ["shared"] * 6


@pytest.mark.parametrize("name", ["shared", "hierarchical", "mpi"], ids="by {}".format)
def test_sums_by_nodes_are_refused_where_these_cut_groups_of_dp_unlike(name: str) -> None:
    def rank(comm: Comm) -> dict[str, Any]:
        return started(comm, dp=comm.size // 2, tp=2, allreduce=name)

    with refused(f"allreduce {name} adds up node by node", "2 ranks along tp", "ring"):
        threads.run(6, rank, per_node=3)
    threads.run(4, rank, per_node=3)  # the sum of two numbers has one order


# ---- norms


def test_squares_are_summed_alike_whatever_the_threads_of_blas() -> None:
    g = np.random.default_rng(0).standard_normal(100_001).astype("float32")
    total = float(squares(g))
    assert BLOCK_OF_SQUARES <= 10_000
    assert total == pytest.approx(float((g.astype("float64") ** 2).sum()), rel=1e-6)

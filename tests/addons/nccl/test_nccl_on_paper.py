"""Sums by NCCL on paper: plans take them as they are, and count the copies in float32."""

from dataclasses import replace

import pytest
from helpers.planning import planning
from helpers.training.on_paper import arranged

from nnmpi import Config
from nnmpi.addons.nccl.nccl import NCCL
from nnmpi.addons.planning.fastest_sum import with_fastest_sum
from nnmpi.addons.planning.paper.built import built
from nnmpi.addons.planning.paper.rank import exchanges, memory, traffic
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.run.setup.cutting import uncut_of

CNN = Config(model="mnist-cnn", data="synthetic:1x28x28:10:12800")
MLP = {"model": "mlp:64-48-40-32-24-10", "optimizer": "adam"}


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_ranks_that_sum_by_nccl_need_no_gpu_on_paper(zero: int) -> None:
    cluster = Cluster.on_paper(4, 2, "cuda")._replace(libraries=(NCCL,))
    options = MLP | {"allreduce": NCCL, "zero": zero, "dtype": "bfloat16"}
    a = arranged(cluster, **options)
    one = built(a, 1)
    longest = max(b.stop - b.start for b in a.model_on(1).buckets)
    assert one.memory.wide_copy == 4 * longest  # of terms in 32 bits
    sums = [e for e in exchanges(a, 1, 24)["dp"] if e.algorithm == NCCL]
    assert sums
    gathers = traffic(a, 1, 24)["dp"].bytes
    assert gathers > 0 if zero else gathers < 2**10


def test_sums_by_nccl_stay() -> None:
    cluster = Cluster.on_paper(4, device="cuda")._replace(libraries=(NCCL,))
    config = replace(CNN, device="cuda", dp=4)
    a = on_paper(uncut_of(config)[1], cluster)
    assert a.algorithm == NCCL
    assert memory(a, 0, 4).slots == 0
    assert with_fastest_sum(a, planning(CNN, 4).costs.exchanges) is a


@pytest.mark.parametrize("zero", [0, 1])
def test_the_copy_in_float32_of_sums_by_nccl_counts(zero: int) -> None:
    cluster = Cluster.on_paper(4, device="cuda")._replace(libraries=(NCCL,))
    config = replace(CNN, device="cuda", dp=4, dtype="bfloat16", zero=zero)
    wide, narrow = (
        on_paper(uncut_of(replace(config, reduce_dtype=dtype))[1], cluster)
        for dtype in ("float32", "bfloat16")
    )
    longest = max(one.stop - one.start for one in wide.model_on(0).buckets)
    assert memory(wide, 0, 4).slots == 4 * longest
    assert memory(narrow, 0, 4).slots == 0

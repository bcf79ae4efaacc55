"""Exchanges that a walk over the list of a rank finds, beside those that its own store, sums and
update start when the list is carried out on arrays without data."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.training.laws_language import MODELS, POSITIONS, many_tokens
from helpers.training.on_paper import arranged

from nnmpi.data.loader import Batch, StepBatch
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.exchanges import AxisExchange
from nnmpi.parallel.arrangement.micro_batches import micro_batches
from nnmpi.parallel.step.executor import StepState
from nnmpi.planning.paper.built import built
from nnmpi.planning.paper.rank import exchanges
from nnmpi.schedules.op import PASSES

BATCH = 24
MLP = {"model": "mlp:64-48-40-32-24-10", "bucket_mb": 0.01}
TIED = {"build": partial(MODELS["gpt"], POSITIONS), "given": many_tokens, "bucket_mb": 0.02}
ENCODER = {"build": partial(MODELS["encoder"], POSITIONS), "given": many_tokens}
CNN = {"model": "digits-cnn", "micro_batches": 3, "bucket_mb": 0.002}
PARTS = {"tp": 2, "sequence_parallel": True}
LAYOUTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "a ring": (3, 1, MLP | {"allreduce": "ring", "micro_batches": 2}),
    "a node": (4, 1, MLP | {"allreduce": "shared"}),
    "two nodes": (4, 2, MLP | {"allreduce": "hierarchical", "dtype": "bfloat16"}),
    "zero 1, a reduce-scatter": (3, 1, MLP | {"allreduce": "ring", "zero": 1}),
    "zero 1, an all-reduce": (4, 1, MLP | {"allreduce": "doubling", "zero": 1}),
    "zero 2": (3, 1, MLP | {"allreduce": "halving", "zero": 2, "micro_batches": 3}),
    "zero 3": (3, 1, MLP | {"allreduce": "ring", "zero": 3, "micro_batches": 3}),
    "16 bits": (2, 1, MLP | {"allreduce": "ring", "dtype": "float16"}),
    "norms of parameters": (4, 1, MLP | {"optimizer": "lamb", "pp": 2, "dp": 2}),
    "norms of shards": (4, 1, TIED | {"optimizer": "lamb", "zero": 3, "pp": 2, "dp": 2}),
    "a tied weight": (4, 1, TIED | {"pp": 2, "dp": 2, "allreduce": "ring"}),
    "a tied weight, zero 1": (4, 1, TIED | {"pp": 2, "dp": 2, "zero": 1}),
    "a tied weight, zero 2": (4, 1, TIED | {"pp": 2, "dp": 2, "zero": 2, "dtype": "bfloat16"}),
    "terms": (4, 1, TIED | PARTS | {"dp": 2}),
    "terms of shards": (4, 1, TIED | PARTS | {"dp": 2, "zero": 3}),
    "a mask that goes on": (2, 1, ENCODER | {"pp": 2, "micro_batches": 2, "cut": "6"}),
    "statistics": (4, 1, CNN | {"pp": 2, "dp": 2}),
    "statistics in halves": (4, 1, CNN | {"pp": 2, "dp": 2, "schedule": "zb-h1"}),
    "statistics, once": (4, 1, CNN | {"pp": 2, "dp": 2, "recompute": "stage"}),
}


def carried(a: Arrangement, rank: int) -> Counter[AxisExchange]:
    """What the second step of a rank sends beside activations within passes; in the first one ZeRO
    has gathered nothing yet."""
    one = built(a, rank)
    micro = [
        Batch(np.empty((n, 0)), np.zeros(n), np.arange(n)) for n in micro_batches(a, rank, BATCH)
    ]
    for step in range(2):
        one.state.log.clear()
        one.run(StepBatch(np.arange(BATCH), micro, float(BATCH)), StepState(step, 0, step), 1 << 30)
        one.store.wait()
    return carried_alike(one.state.log.entries)


def carried_alike(made: Counter[AxisExchange]) -> Counter[AxisExchange]:
    """All but what layers send along tp and cp, which compute nothing when a list is carried out;
    statistics go along dp."""
    return Counter(
        {(axis, e): n for (axis, e), n in made.items() if e.during not in PASSES or axis == "dp"}
    )


@pytest.mark.parametrize(("ranks", "nodes", "options"), LAYOUTS.values(), ids=LAYOUTS)
def test_a_walk_finds_what_stores_send(ranks: int, nodes: int, options: dict[str, Any]) -> None:
    a = arranged(Cluster.on_paper(ranks, nodes), **options)
    for rank in range(ranks):
        walked = Counter[AxisExchange]()
        for axis, along in exchanges(a, rank, BATCH).items():
            for e in along:
                walked[axis, e._replace(times=1)] += e.times
        assert carried_alike(walked) == carried(a, rank)
        assert sum(carried_alike(walked).values()) > 0

"""Exchanges that a walk over the list of a rank finds, beside those that its own store, sums and
update start when the list is carried out on arrays without data."""

import tomllib
from collections import Counter
from functools import partial
from pathlib import Path
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
OF_TOKENS = {"given": many_tokens}
MODELS_OF: dict[str, dict[str, Any]] = {
    "mlp": {"model": "mlp:64-48-40-32-24-10", "bucket_mb": 0.01},
    "tied": {**OF_TOKENS, "build": partial(MODELS["gpt"], POSITIONS), "bucket_mb": 0.02},
    "encoder": {**OF_TOKENS, "build": partial(MODELS["encoder"], POSITIONS)},
    "cnn": {"model": "digits-cnn", "micro_batches": 3, "bucket_mb": 0.002},
}
LAYOUTS = tomllib.loads(Path(__file__).with_name("walked_layouts.toml").read_text(encoding="utf-8"))


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


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_walk_finds_what_stores_send(name: str) -> None:
    row = dict(LAYOUTS[name])
    cluster = Cluster.on_paper(row.pop("ranks"), row.pop("nodes", 1))
    a = arranged(cluster, **MODELS_OF[row.pop("of")] | row)
    for rank in range(a.cluster.size):
        walked = Counter[AxisExchange]()
        for axis, along in exchanges(a, rank, BATCH).items():
            for e in along:
                walked[axis, e._replace(times=1)] += e.times
        assert carried_alike(walked) == carried(a, rank)
        assert sum(carried_alike(walked).values()) > 0

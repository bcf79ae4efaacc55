"""What `arrange` decides by rules, for clusters that are on paper."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.traced import traced

from nnmpi import Config, nn
from nnmpi.addons.planning.machine import TYPICAL
from nnmpi.addons.planning.stage_costs import division_on_paper
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.comm.allreduce.dispatch import SHORT
from nnmpi.parallel import strategies
from nnmpi.parallel.arrangement.arrange import PIPELINE, REPLICATED, arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.store_kinds import MORE_STORE_KINDS, STORE_KINDS
from nnmpi.parallel.layout import STRATEGY_KINDS
from nnmpi.parallel.stores.zero import ZERO
from nnmpi.parallel.tensor.shard import shard

LAYERS = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)
GRAPH = traced(nn.Sequential(*LAYERS), 6, given="float64", dtype="float64")


def arranged(ranks: int, nodes: int = 1, free: int | None = None, **options: Any) -> Arrangement:
    config, cluster = Config(**options), Cluster.on_paper(ranks, nodes)
    if free is not None:
        cluster = cluster._replace(free_memory=(free,) * ranks)
    division = division_on_paper(ModelTimes(GRAPH, TYPICAL, "float32"), config)
    return arrange(config, cluster, GRAPH, shard(GRAPH, config.tp), division)


FILE = Path(__file__).with_name("rules_of_auto.toml")
RULES = tomllib.loads(FILE.read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("row", RULES, ids=lambda row: " ".join(map(str, row.values())))
def test_the_all_reduce_of_auto(row: dict[str, Any]) -> None:
    found = arranged(row["ranks"], row["nodes"], **row["options"])
    assert (found.algorithm, found.store.name) == (row["algorithm"], row["store"])


def test_each_kind_of_store_has_what_makes_it() -> None:
    zero = {kind.zero for kind in STORE_KINDS.values()}
    assert zero == {0, *ZERO}
    assert all(kind.make for kind in MORE_STORE_KINDS.rows())


def test_each_kind_of_strategy_has_what_makes_it() -> None:
    assert {REPLICATED.name, PIPELINE.name} == strategies.PARTS.keys()
    for kind in STRATEGY_KINDS.rows():
        functions = [make for make in (kind.parts, kind.make, kind.held) if make is not None]
        assert len(functions) == (1 if kind.parts else 2)


@pytest.mark.parametrize(
    ("features", "algorithm"), [(SHORT // 4 // 9, "doubling"), (SHORT // 4 // 8, "halving")]
)
def test_the_bytes_of_all_gradients_decide_between_nodes(features: int, algorithm: str) -> None:
    graph = traced(nn.Linear(features, 8), features)
    assert arrange(Config(), Cluster.on_paper(4, 4), graph).algorithm == algorithm


def test_shared_memory_that_is_asked_for_has_to_be_there() -> None:
    with refused("allreduce shared", "1,000 are free"):
        arranged(4, free=1000, allreduce="shared")


@pytest.mark.parametrize(
    ("nodes", "spare", "any_thread", "progress"),
    [(2, 2, True, "thread"), (2, 1, True, "poll"), (2, 2, False, "poll"), (1, 2, True, "poll")],
)
def test_a_thread_needs_cores_and_another_node(
    nodes: int, spare: int, any_thread: bool, progress: str
) -> None:
    cluster = Cluster.on_paper(2, nodes)._replace(spare_cores=(spare,) * 2, any_thread=any_thread)
    assert arrange(Config(), cluster, GRAPH).progress == (progress,) * 2
    for asked in ("poll", *["thread"] * any_thread):
        assert arrange(Config(progress=asked), cluster, GRAPH).progress == (asked,) * 2


def test_one_bucket_on_a_node_and_several_between_nodes() -> None:
    options: dict[str, Any] = {"bucket_mb": 1e-4, "dtype": "float64"}
    assert len(arranged(2).model_on(0).buckets) == 1
    assert len(arranged(2, 2, **options).model_on(0).buckets) > 1

"""What one rank alone has, on paper."""

from typing import Any

import pytest
from helpers.traced import traced

from nnmpi import Config, nn
from nnmpi.addons.planning.machine import TYPICAL
from nnmpi.addons.planning.stage_costs import division_on_paper
from nnmpi.addons.planning.unit_times import ModelTimes
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.arrangement.state_on_paper import holders_on_paper, unreplicated_bytes
from nnmpi.parallel.tensor.shard import shard

PARAMETERS = 48 + 8 + 64 + 8 + 24 + 3 + 6  # numbers


def layers() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3), nn.BatchNorm1d(3)
    )


def arranged(ranks: int, nodes: int = 1, **options: Any) -> Arrangement:
    graph = traced(layers(), 6, given="float64", dtype="float64")
    config, cluster = Config(**options), Cluster.on_paper(ranks, nodes)
    division = division_on_paper(ModelTimes(graph, TYPICAL, "float32"), config)
    return arrange(config, cluster, graph, shard(graph, config.tp), division)


RING = {"allreduce": "ring"}
BUFFERS = 3 * 4 + 3 * 4 + 8
COUNTS = 8 * 8  # the numbers of updates of the parameters


@pytest.mark.parametrize(
    ("ranks", "nodes", "options", "bytes_of_all"),
    [
        (1, 1, {}, 12 * PARAMETERS + COUNTS + BUFFERS),  # values and two state arrays
        (4, 1, {}, 12 * PARAMETERS),  # each updates a part, in the memory of the node
        (4, 2, {}, 0),
        (4, 4, RING, 0),
        (4, 2, {"zero": 1, **RING}, 12 * PARAMETERS),  # recovery takes values from their owner
        (4, 2, {"zero": 2, **RING}, 12 * PARAMETERS),
        (4, 2, {"zero": 3, **RING}, 12 * PARAMETERS),
        (4, 2, {"zero": 1, **RING, "optimizer": "sgd", "momentum": 0.0}, 4 * PARAMETERS),
        (4, 2, {"zero": 1, **RING, "dtype": "float16"}, 12 * PARAMETERS),  # masters
        (4, 2, {"zero": 3, **RING, "dtype": "float16"}, 12 * PARAMETERS),
        (2, 1, {"pp": 2}, 12 * PARAMETERS + COUNTS + BUFFERS),
        (4, 1, {"pp": 2, **RING}, 0),
        (4, 1, {"pp": 2, **RING, "zero": 1}, 12 * PARAMETERS),
        (3, 1, {"servers": 1}, 12 * PARAMETERS + COUNTS),
        (5, 1, {"servers": 2}, 12 * PARAMETERS),
        (4, 1, {"reproducible": True}, 0),
        (2, 1, {"pp": 2, "schedule": "pipedream"}, 12 * PARAMETERS + COUNTS + BUFFERS),
    ],
)
def test_what_is_nowhere_else_is_counted_once(
    ranks: int, nodes: int, options: dict[str, Any], bytes_of_all: int
) -> None:
    a = arranged(ranks, nodes, **options)
    assert sum(unreplicated_bytes(a, r) for r in range(ranks)) == bytes_of_all


def test_what_ranks_along_tp_have_whole_is_lost_with_all_of_them() -> None:
    """The first layer is cut by columns, and nothing of the normalisation at the end is."""
    a = arranged(2, tp=2)
    cut = {*a.sharding.variables} & {one.variable for one in a.model_on(0).trained}
    assert {a.graph.variables[v].path for v in cut} >= {"0.weight", "0.bias", "2.weight"}
    paths, tensors = {a.graph.variables[v].path for v in cut}, {v.path for v in a.graph.variables}
    assert {x.name for x in holders_on_paper(a).only_on(0)} & tensors == paths
    rest = {x.name for x in holders_on_paper(a).only_on(0, lost=[1])} & tensors - paths
    buffers = {v.path for v in a.graph.variables if not v.is_parameter}
    assert rest >= {"5.weight", "5.bias", *buffers}
    assert len(buffers) == 3

"""Sharded models that are no chains: how they are divided, and that they train as on one rank."""

import re
from typing import Any

import numpy as np
import pytest
from helpers.tensor import laws_tensor_graphs as laws
from helpers.traced import traced
from helpers.training.graph_models import SAMPLE

import nnmpi
from nnmpi import Config, data, nn
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.addons.planning.run.on_paper import on_paper
from nnmpi.autograd import Tensor
from nnmpi.comm import thread_ranks
from nnmpi.nn.models import MODELS, mlp
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.tensor import Way
from nnmpi.parallel.tensor.parallelize import rebuild
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.ways import SUM_OUTPUT, AxisCut
from nnmpi.run.setup import objectives
from nnmpi.run.setup.cutting import uncut


def plan(model: nn.Module, *sample: int, ranks: int = 2, whole_output: bool = False) -> str:
    return laws.words(shard(traced(model, *sample), ranks, whole_output))


PLANS = {
    "residual mlp": "column row column row column row",
    "residual cnn": "column row copy column channels row copy column channels row",
    "qkvo": "column row row row column row",
    "attention": f"{'column,gathers ' * 5}copy column row column",
    "tied": f"{'column,gathers ' * 5}column",
    "tied to an op": "column,gathers copy column,gathers copy column",
    "measured": "column row column row",
    "layers of one's own": (
        "column,gathers copy column channels row rows column,gathers copy column"
    ),
}


@pytest.mark.parametrize("name", PLANS)
def test_how_a_graph_is_divided(name: str) -> None:
    assert plan(laws.built(name).to("float32"), *SAMPLE) == PLANS[name]


class Times(nn.Module):
    """A factor between two layers."""

    def __init__(self, factor: Any) -> None:
        self.a, self.b, self.factor = nn.Linear(8, 12), nn.Linear(12, 8), factor

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x) * self.factor)
        return y


@pytest.mark.parametrize(
    ("factor", "is_number"),
    [
        *((2.0, True), (np.float32(2), True), (np.ones(1, "f"), True), (nnmpi.ones(1), True)),
        *((np.ones(12, "f"), False), (nnmpi.ones(12), False)),
    ],
)
def test_a_number_is_for_all_channels_and_an_array_for_each(factor: Any, is_number: bool) -> None:
    """A rank with some of the channels would need its part of the array."""
    found = plan(nn.Sequential(nn.Linear(8, 8), Times(factor), nn.Linear(8, 8)), 8)
    assert found == ("column,gathers column row column" if is_number else "column row column row")


def test_the_plan_sends_the_least() -> None:
    """Of three layers, a gather of 1024 is less than a sum and the gradient of one."""
    graph = traced(mlp(64, 1024, 1024, 10), 64)
    sharding = shard(graph, 2)
    assert laws.words(sharding) == "column,gathers column row"
    assert [layer.why for layer in sharding.layers] == [
        "3,092 elements sent for a sample; 4,096 as column",
        "3,092 elements sent for a sample; 4,096 as row",
        "3,092 elements sent for a sample; 4,096 as column",
    ]
    separate = Cluster.on_paper(2, nodes=2)  # all sums are messages
    config, criterion = Config(model="mlp:64-1024-1024-10", tp=2), objectives.criterion(None)
    model = mlp(64, 1024, 1024, 10)
    dataset = data.blank("digits", None, 0)
    arrangement = on_paper(uncut(config, model, dataset, criterion), separate)
    assert traffic(arrangement, 0, 3)["tp"].bytes == 3 * 3092 * 4 / 2
    assert plan(mlp(64, 300, 200, 10), 64) == "column row column"


def test_the_output_is_whole_if_it_has_to_be() -> None:
    model = MODELS["digits-cnn"]()
    assert shard(traced(model, *SAMPLE), 3).output == (0, 3, 6, 10)
    sharding = shard(traced(model, *SAMPLE), 3, whole_output=True)
    assert sharding.output is None
    assert sharding.layers[-1].gathers


def test_a_sharding_tells_where_each_tensor_is_cut() -> None:
    graph = traced(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5)), 6)
    sharding = shard(graph, 2)
    bounds = (0, 4, 8)
    assert sharding.edges == {1: AxisCut(bounds, 0), 2: AxisCut(bounds, 0)}
    found = {graph.variables[v].path: cut for v, cut in sharding.variables.items()}
    assert found == {
        "0.weight": AxisCut(bounds, 0),
        "0.bias": AxisCut(bounds, 0),
        "2.weight": AxisCut(bounds, 1),
    }
    row = sharding.layers[1]
    assert row.node == 2
    assert [(sent.message, sent.elements) for sent in row.sends] == [(SUM_OUTPUT, 5)]


def test_a_sharding_is_for_so_many_ranks() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    graph = traced(model, 8)
    with pytest.raises(ValueError, match=r"divided for 3 ranks, but there are 1"):
        rebuild(model, graph, shard(graph, 3), thread_ranks.comm_self())


class Biased(nn.Module):
    def __init__(self) -> None:
        self.w, self.b = nn.Parameter(np.ones((8, 8), "f")), nn.Parameter(np.ones(8, "f"))
        self.register_buffer("t", np.ones(2, "f"))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w + self.b


WRONG: dict[str, Any] = {
    "the way 'row' of its rule leaves b whole": (Way(-1, None, {"w": 0}),),
    "the way 'column' of its rule leaves b whole": (Way(None, -1, {"w": 1}),),
    "the way 'channels' of its rule leaves w whole": (Way(..., ...),),
    "the way 'rows' of its rule leaves w whole": (Way(parameters={"W": 0}),),
    "cuts axis 1 of a sample, which has 1": (Way(None, 1, {"w": 1, "b": 0}),),
    "cuts axis 1 of b, which has 1": (Way(None, -1, {"w": 1, "b": 1}),),
    "cuts t of shape (2,) along axis 0, whose size must be that of its 8 channels": (
        Way(None, -1, {"w": 1, "b": 0, "t": 0}),
    ),
    "has output=..., the axis of the input, but input=None": (Way(None, ..., {"w": 1, "b": 0}),),
    "`behind` of its rule returns bounds (0, 9, 8): return 3 rising from 0": (
        Way(0, 0, {"w": 1, "b": 0}, behind=lambda settings, sample, bounds: (0, 9, 8)),
    ),
    "`behind` of its rule returns bounds (0, 8): return 3": (
        Way(0, 0, {"w": 1, "b": 0}, behind=lambda settings, sample, bounds: (0, 8)),
    ),
    "Wrong.sharding is 'column': give a tuple of": "column",
}


@pytest.mark.parametrize("message", WRONG)
def test_rules_that_cannot_be_right_are_refused(message: str) -> None:
    wrong = type("Wrong", (Biased,), {"sharding": WRONG[message], "forward": Biased.forward})
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        plan(nn.Sequential(nn.Linear(8, 8), wrong()), 8)
    assert "\n" not in str(error.value)

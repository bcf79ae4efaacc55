"""Experts whose tokens are cut along positions: who sends what, and when they stay whole."""

import pytest
from helpers.traced import traced
from helpers.training.laws_language import MODELS, POSITIONS, tokens
from helpers.training.pipelined import run

from nnmpi import nn
from nnmpi.addons.layer_ways.experts import Router
from nnmpi.comm import Comm, thread_ranks
from nnmpi.nn.graph import Graph
from nnmpi.parallel.tensor.shard import shard


def forms(graph: Graph, sequence: bool) -> dict[str, str]:
    return {layer.path: layer.way.name for layer in shard(graph, 2, sequence=sequence).layers}


def test_the_plan_of_experts() -> None:
    graph = traced(MODELS["routed"](POSITIONS), POSITIONS, given="int64")
    cut, whole = (forms(graph, sequence) for sequence in (True, False))
    for at in ("3.layers.1", "5.layers.0"):
        assert [cut[f"{at}.{name}"] for name in ("router", "experts")] == ["counts", "all-to-all"]
        assert [whole[f"{at}.{name}"] for name in ("router", "experts")] == ["copy", "rows"]
    sharding = shard(graph, 2, sequence=True)
    of_layers = {e for node in graph.nodes for e in node.outputs}
    assert of_layers == {*sharding.edges}, "some activation is whole on every rank"
    names = {graph.variables[v].path for v in sharding.partial_gradients}
    assert "3.layers.1.router.weight" in names
    experts = next(layer for layer in sharding.layers if layer.kind == "Experts")
    assert experts is not None
    assert "all-to-all of tokens" in experts.messages


def test_experts_before_what_takes_whole_samples_have_whole_samples() -> None:
    cut = forms(traced(MODELS["mixture"](POSITIONS), POSITIONS, given="int64"), sequence=True)
    assert cut["6.layers.0.router"] == "copy"
    assert cut["6.layers.0.experts"] == "rows"


def without_auxiliary() -> nn.Module:
    """float16 refuses the auxiliary loss."""
    model = MODELS["routed"](POSITIONS)
    for m in model.modules():
        if isinstance(m, Router):
            m.auxiliary = 0.0
    return model


def test_it_trains_in_16_bits_as_with_whole_tokens() -> None:
    case = {"batch_size": 9, "dtype": "float16", "tp": 2, "lr": 1e-3}

    def losses(comm: Comm) -> None:
        cut, whole = (
            run(comm, without_auxiliary, tokens(), **case, sequence_parallel=s)
            for s in (True, False)
        )
        assert cut.losses == pytest.approx(whole.losses, rel=2e-3)

    thread_ranks.run(2, losses)

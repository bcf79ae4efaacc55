"""What core does with language models: blocks, fragments, products, copies, updates."""

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers.training.laws_language import VOCABULARY, tokens
from helpers.training.pipelined import Ran, equals, run

from nnmpi import Config
from nnmpi.addons.averaging.fragments import fragments, layer_of
from nnmpi.addons.language.models.gpt import GPT
from nnmpi.comm import Comm, comm_self
from nnmpi.comm import thread_ranks as threads
from nnmpi.nn.graph import Graph
from nnmpi.nn.recompute import recomputed_paths, recomputed_with
from nnmpi.parallel.arrangement.division import work
from nnmpi.run.setup.cutting import uncut_of


def graph_of(model: str) -> Graph:
    _, uncut = uncut_of(Config(model=model, context=8, batch_size=2), 10)
    graph: Graph = uncut.graph
    return graph


def test_blocks_are_numbered_modules_with_layers() -> None:
    for model, blocks in (("gpt:3x2x4", "h"), ("llama:2x2x4", "layers")):
        graph = graph_of(model)
        n = 3 if model.startswith("gpt") else 2
        assert recomputed_paths(graph, "block") == [f"{blocks}.{k}" for k in range(n)]
        attention = recomputed_paths(graph, "selective")
        assert len(attention) == n
        assert all(path.endswith("attend") for path in attention)
        for how in ("none", "stage"):
            assert recomputed_paths(graph, how) == []
        ops = [node for node in graph.nodes if node.layer is None]
        assert {recomputed_with(node, "block") for node in ops} == {
            *recomputed_paths(graph, "block")
        }


def test_fragments_have_whole_blocks() -> None:
    parts = fragments(graph_of("gpt:2x2x16"), 3)
    at = {layer_of(path): part for path, part in parts.items()}
    assert at == {"wte": 0, "wpe": 1, "h.0": 2, "h.1": 0, "ln_f": 1}
    assert len(parts) == 2 + 2 * 12 + 2


def test_lookups_are_no_products() -> None:
    t, h, heads, words = 6, 8, 2, 10
    config = Config(model=f"gpt:1x{heads}x{h}", context=t, batch_size=2, dropout=0.0)
    graph = uncut_of(config, words)[1].graph
    works = {node.name: work(graph, node) for node in graph.nodes}
    assert works["wte"] == works["wpe"] == t * h  # an operation an element
    assert works["h.0.attn.c_attn"] == t * h * 3 * h
    assert works["head"] == t * h * words
    assert works["h.0.attn.attend"] == t * t * h  # causal: half of the positions, twice


def test_one_is_copied_with_its_values() -> None:
    model = GPT(1, 1, 8, 16, 8)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert twin.head.weight is twin.wte.weight
        for (name, a), (other, b) in zip(
            model.state_dict().items(), twin.state_dict().items(), strict=True
        ):
            assert name == other
            np.testing.assert_array_equal(a, b)


RULES: dict[str, dict[str, Any]] = {
    "muon": {"lr": 0.01, "weight_decay": 0.02, "weight_decay_of": "matrices"},
    "lamb": {"lr": 0.01, "weight_decay": 0.02},
    "lars": {"lr": 0.5, "weight_decay": 0.02, "momentum": 0.8},
}


@pytest.mark.parametrize("layout", [{"dp": 2, "pp": 2}, {"cp": 2, "dp": 2}], ids=str)
@pytest.mark.parametrize("optimizer", RULES)
def test_optimizers_of_whole_tensors_train_one_as_one_rank(
    optimizer: str, layout: dict[str, int]
) -> None:
    """Its embedding is its head too, which is on another rank of a pipeline."""

    def trained(comm: Comm, **options: int) -> Ran:
        case = {"optimizer": optimizer, **RULES[optimizer], "batch_size": 9, "micro_batches": 2}
        build = partial(GPT, 2, 2, 16, VOCABULARY, 8)
        return run(comm, build, tokens(8), clip_norm=1.0, **case, **options)

    wanted = trained(comm_self())
    threads.run(4, lambda comm: equals(comm, trained(comm, **layout), wanted))


def test_groups_along_tp_that_nodes_cut_unevenly_train_one_as_one_rank() -> None:
    """Of 4 ranks a node, some share the memory of a node with their replica, others with none: with
    sequence parallelism ranks along tp add up slices of gradients, which must be equally long."""

    def trained(comm: Comm, **options: Any) -> Ran:
        build = partial(GPT, 1, 3, 12, VOCABULARY, 8)
        return run(comm, build, tokens(8), optimizer="sgd", batch_size=9, **options)

    wanted = trained(comm_self())
    layout = {"tp": 3, "sequence_parallel": True, "allreduce": "shared"}
    threads.run(6, lambda comm: equals(comm, trained(comm, **layout), wanted), per_node=4)

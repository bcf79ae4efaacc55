"""Sequence parallelism: what is whole between sharded layers is cut along positions."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from helpers.datafiles import refused
from helpers.traced import traced
from helpers.training.laws_language import MODELS, POSITIONS, tokens
from helpers.training.pipelined import run
from helpers.training.transformer_models import Decoder

from nnmpi import Config, nn
from nnmpi.addons.planning.paper.activations import activations
from nnmpi.addons.planning.paper.rank import traffic
from nnmpi.comm import Comm, thread_ranks
from nnmpi.nn.graph import Graph
from nnmpi.parallel.arrangement.arrange import arrange
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.cluster import Cluster
from nnmpi.parallel.tensor.shard import shard
from nnmpi.parallel.tensor.sharding import UNSHARDED, Sharding

# ---- the plan


def of_gpt(tp: int, sequence: bool) -> tuple[Graph, Sharding]:
    return of_model(nn.GPT(2, 4, 64, 50, 32, dropout=0.1), tp, sequence)


def of_decoder(tp: int, sequence: bool) -> tuple[Graph, Sharding]:
    return of_model(Decoder(50, 32, 2, 4, 64), tp, sequence)


def of_model(model: nn.Module, tp: int, sequence: bool) -> tuple[Graph, Sharding]:
    graph = traced(model, 32, given="int64")
    return graph, shard(graph, tp, sequence=sequence) if tp > 1 else UNSHARDED


def test_the_plan_of_a_block_of_gpt() -> None:
    graph, found = of_gpt(2, sequence=True)
    forms = {layer.path: layer.way.name for layer in found.layers}
    assert forms["wte"] == "rows of positions"
    block = {path[4:]: form for path, form in forms.items() if path.startswith("h.0.")}
    assert block == {
        "ln_1": "positions",
        "attn.c_attn": "column of positions",
        "attn.attend": "channels",
        "attn.c_proj": "row of positions",
        "attn.drop": "positions",
        "ln_2": "positions",
        "mlp.c_fc": "column of positions",
        "mlp.c_proj": "row of positions",
        "mlp.drop": "positions",
    }
    of_layers = {e for node in graph.nodes for e in node.outputs}
    assert of_layers == {*found.edges}, "some activation is whole on every rank"
    names = {graph.variables[v].path for v in found.partial_gradients}
    assert "ln_f.weight" in names
    assert "h.1.mlp.c_proj.bias" in names
    assert "wpe.weight" not in names  # each rank has its own rows


def test_the_plan_of_a_block() -> None:
    graph, found = of_decoder(2, sequence=True)
    ways = {layer.path: layer.way.name for layer in found.layers}
    assert ways["embed"] == "rows of positions"
    around, within = (
        [ways[f"blocks.0.{part}.layers.{k}"] for k in layers]
        for part, layers in ((0, range(5)), (1, (0, 1, 3, 4)))
    )
    column, row = "column of positions", "row of positions"
    assert around == ["positions", column, "channels", row, "positions"]
    assert within == ["positions", column, row, "positions"]
    of_layers = {e for node in graph.nodes for e in node.outputs}
    assert of_layers == {*found.edges}, "some activation is whole on every rank"
    names = {graph.variables[v].path for v in found.partial_gradients}
    assert {"norm.weight", "blocks.1.1.layers.3.bias"} <= names
    assert "positions.weight" not in names  # each rank has its own rows


def test_without_the_option_no_plan_cuts_positions() -> None:
    _, found = of_decoder(2, sequence=False)
    assert not any(layer.way.markers for layer in found.layers)
    assert not found.partial_gradients


# ---- figures


def arranged(tp: int, sequence: bool, **options: Any) -> Arrangement:
    graph, sharding = of_decoder(tp, sequence)
    config = Config(tp=tp, sequence_parallel=sequence, **options)
    return arrange(config, Cluster.on_paper(tp, tp), graph, sharding)


@pytest.mark.parametrize("tp", [2, 4])
def test_activations_are_divided_by_the_ranks(tp: int) -> None:
    one, whole, cut = (
        activations(a, 0, 8) for a in (arranged(1, False), arranged(tp, False), arranged(tp, True))
    )
    assert tp * cut == pytest.approx(one, rel=0.04)  # the table of the loss is on every rank
    assert tp * whole > 1.35 * one


def test_it_sends_as_much_and_gathers_the_input_of_columns_again() -> None:
    """Rings, whose all-reduce is a reduce-scatter and an all-gather."""
    plain, cut = (traffic(arranged(2, s), 0, 64)["tp"].bytes for s in (False, True))
    columns, numbers = 5, 64 * 32 * 64  # two of each block, and the head
    again, terms = columns * numbers // 2 * 4, 2 * 64 * 2 * 5 + 2 * 64 * 2
    assert cut - plain == pytest.approx(again, abs=8 * terms)


# ---- runs


def test_the_flag_trains_in_16_bits_as_without_it() -> None:
    build = partial(MODELS["decoder"], POSITIONS)
    case = {"batch_size": 9, "dtype": "float16", "tp": 2, "lr": 1e-3}

    def losses(comm: Comm) -> None:
        cut, whole = (
            run(comm, build, tokens(), **case, sequence_parallel=s) for s in (True, False)
        )
        assert cut.losses == pytest.approx(whole.losses, rel=2e-3)

    thread_ranks.run(2, losses)


def test_positions_that_do_not_suffice_are_refused() -> None:
    graph = traced(Decoder(9, 3, 1, 4, 8), 3, given="int64")
    with refused("sequence parallelism", "a sample has 3", "the 4 ranks"):
        shard(graph, 4, sequence=True)


FEW_HEADS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "heads of layers": (
        partial(Decoder, 9, 6, 1, 2, 12),
        "layer blocks.0.0.layers.2 (SelfAttention) between them has 2 heads, which",
    ),
    "heads": (
        lambda: nn.GPT(1, 2, 12, 9, 6),
        "layer h.0.attn.attend (SelfAttention) between them has 2 heads, which",
    ),
    "keys and values": (
        lambda: nn.Llama(nn.llama.LlamaSizes(1, 6, 12, 9, 6, 2)),
        "layer layers.0.attend (SelfAttention) between them has 2 key/value heads, which",
    ),
}


@pytest.mark.parametrize("case", FEW_HEADS)
def test_fewer_heads_than_ranks_are_refused(case: str) -> None:
    build, heads = FEW_HEADS[case]
    with refused("sequence parallelism", heads, "among 3 ranks: use a --tp of at most 2, or"):
        shard(traced(build(), 6, given="int64"), 3, sequence=True)


def test_a_model_without_positions_is_refused() -> None:
    layers = nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)
    none = "the model has none between layers that are divided: leave --sequence-parallel out"
    with refused("sequence parallelism", none):
        shard(traced(nn.Sequential(*layers), 6), 2, sequence=True)

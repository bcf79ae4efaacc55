"""The multiply-adds of the nodes of a graph."""

from nnmpi import Config
from nnmpi.parallel.arrangement.division import work
from nnmpi.run.setup.cutting import uncut_of


def test_lookups_are_no_products() -> None:
    t, h, heads, words = 6, 8, 2, 10
    config = Config(model=f"gpt:1x{heads}x{h}", context=t, batch_size=2, dropout=0.0)
    graph = uncut_of(config, words)[1].graph
    works = {node.name: work(graph, node) for node in graph.nodes}
    assert works["wte"] == works["wpe"] == t * h  # an operation an element
    assert works["h.0.attn.c_attn"] == t * h * 3 * h
    assert works["head"] == t * h * words
    assert works["h.0.attn.attend"] == t * t * h  # causal: half of the positions, twice

"""Rows of images in a graph: which ones a layer reads, and how many move between ranks.

A pooling that runs as one op with the layer before it belongs to that one.
"""

from nnmpi.arrays.kernels.window import Window
from nnmpi.nn import MaxPool2d
from nnmpi.nn.graph import Edge, Graph
from nnmpi.nn.layers.pooling import has_2x2_windows
from nnmpi.parallel.tensor.halo import rows_sent, windows_of


def pooling_behind(graph: Graph, k: int) -> int | None:
    """The node of the pooling that runs as one op with a layer; None if none does."""
    last = max([k, *(nodes[-1] for nodes in graph.fused if nodes[0] == k)])
    pool = graph.nodes[last]
    is_fused = last > k and pool.layer is MaxPool2d and has_2x2_windows(pool.settings)
    return last if is_fused else None


def made_by(graph: Graph, k: int) -> Edge:
    """The output of a layer, and of a pooling that runs as one op with it."""
    last = pooling_behind(graph, k)
    return graph.edges[graph.nodes[k if last is None else last].outputs[0]]


def window_of_rows(graph: Graph, k: int) -> Window:
    """The rows that one of the output of a layer depends on, with a pooling that is fused."""
    rows, _ = windows_of(graph.nodes[k].settings)
    return rows if pooling_behind(graph, k) is None else rows.pooled()


def rows_moved(graph: Graph, k: int, ranks: int) -> int:
    """How many rows of a sample all ranks send together for a layer of which each makes some."""
    height = graph.edges[graph.nodes[k].inputs[0]].sample[1]
    return rows_sent(window_of_rows(graph, k), height, ranks)


def is_fused_pooling(graph: Graph, k: int) -> bool:
    """Whether a pooling runs as one op with the layer before it."""
    firsts = [k, *(nodes[0] for nodes in graph.fused if nodes[-1] == k)]
    return any(pooling_behind(graph, first) == k for first in firsts)

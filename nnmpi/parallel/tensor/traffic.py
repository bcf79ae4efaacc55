"""What a sharded model sends, by formula, from the shapes between its layers.

T ranks, n numbers      sent by a rank      where
all-reduce by a ring    2 (T - 1) / T n     output of a row, gradient of the input of a column
all-gather by a ring      (T - 1) / T n     output of a column that gathers; 4 T numbers of a loss

Sums of few bytes go by `doubling`, which sends more in fewer messages where T > 2. Through memory
that a node shares nothing is sent, and the formula counts what would be. Where activations are
computed again (--recompute), sums of the forward pass are made again, which it does not count.
"""

from collections.abc import Container

import numpy as np

from nnmpi.nn.graph import Graph
from nnmpi.parallel.tensor.sharding import Sharding


def bytes_a_sample(
    graph: Graph, sharding: Sharding, nodes: Container[int], received: Container[int] = ()
) -> float:
    """What a rank sends for one sample, forward and back, in these nodes of the graph.

    `received` are edges whose gradient a stage of a pipeline has to send back, whether or not
    a parameter before them is trained. The loss is not counted.
    """
    total = 0.0
    for layer in sharding.layers:
        if layer.node in nodes and layer.how != "copy":
            node = graph.nodes[layer.node]
            x, y = graph.edges[node.inputs[0]], graph.edges[node.outputs[0]]
            is_asked = layer.way.sums_gradient and node.inputs[0] in received
            back = x.numbers if is_asked else layer.back
            numbers = 2 * (layer.summed + back) + layer.gathered
            total += numbers * np.dtype(y.dtype).itemsize
    return total * (sharding.ranks - 1) / sharding.ranks


def loss_bytes_a_sample(sharding: Sharding, itemsize: int, ranks: int) -> int:
    """What a rank sends for the loss of one sample, if classes are sharded."""
    return 0 if sharding.output is None else 4 * (ranks - 1) * max(itemsize, 4)

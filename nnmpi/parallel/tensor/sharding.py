"""Sharding: how a graph is divided among ranks, as a value; `shard` finds it."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from nnmpi.autograd.ops.shape import SUMS
from nnmpi.nn import MaxPool2d
from nnmpi.nn.graph import Edge, Graph, Node
from nnmpi.nn.layers.pooling import has_2x2_windows
from nnmpi.parallel.tensor.branches import NO_BRANCHES, BranchCall, BranchOwners
from nnmpi.parallel.tensor.choices import NodeChoice
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.possible import variables_of
from nnmpi.parallel.tensor.ways import (
    BRANCHES,
    GATHER_OUTPUT,
    POSITIONS,
    SUM_GRADIENT,
    SUM_OUTPUT,
    WHOLE,
    AxisCut,
    I,
    LayerMessage,
    Marker,
    Message,
    Way,
    of_gradients,
)


class ShardedLayer(NamedTuple):
    """One use of a layer that has parameters or is divided.

    node             the index of its node in the graph
    sizes            the shape of the whole weight
    bounds           the channels of each rank: outputs of a column, inputs of a row; empty for a
                     copy
    gathers          whether a column gathers its output
    position_bounds  the positions of each rank where its input or output is cut along them
    sends            the messages that ranks send for it
    why              what the model sends in all, and what it would send with another way of this
                     layer
    """

    node: int
    path: str
    kind: str
    way: Way = WHOLE
    sizes: tuple[int, ...] = ()
    bounds: Bounds = ()
    gathers: bool = False
    position_bounds: Bounds = ()
    sends: tuple[LayerMessage, ...] = ()
    why: str = ""

    @property
    def how(self) -> str:
        """The name of its way."""
        return self.way.pattern.how

    def part(self, rank: int) -> float:
        """Returns the share of its channels that a rank has."""
        bounds = self.bounds
        return (bounds[rank + 1] - bounds[rank]) / bounds[-1] if bounds else 1.0

    @property
    def messages(self) -> str:
        """The messages that ranks send for the layer, as text."""
        return ", ".join(sent.message.words for sent in self.sends if sent.message.words)


class PositionCut(Protocol):
    """The division of the positions of sequences among the ranks along an axis of the mesh."""

    def of(self, rank: int, /) -> np.ndarray:
        """Returns the positions of a rank, in increasing order."""

    def localise(self, e: int, rank: int, shape: list[int], /) -> None:
        """Turns the shape of edge `e` into its shape on a rank, in place."""


class Sharding(NamedTuple):
    """The division of a graph: the layers, edges and variables that are cut, and where.

    layers     in the order in which they run
    edges      the cuts of edges by number; other edges are whole on every rank
    variables  the cuts of parameters and buffers
    terms      parameters that are whole on every rank, and of whose gradients each rank has a term
    output     the bounds of the channels of the output; None if it is whole
    positions  the cuts of sequences, by the axis of an add-on whose ranks have parts of them
    branches   the branches that single ranks along tp have and compute alone
    """

    ranks: int
    layers: tuple[ShardedLayer, ...]
    edges: Mapping[int, AxisCut]
    variables: Mapping[int, AxisCut]
    output: Bounds | None
    partial_gradients: frozenset[int] = frozenset()
    positions: Mapping[str, PositionCut] = {}
    branches: BranchOwners = NO_BRANCHES

    @property
    def ways(self) -> dict[str, str]:
        """The names of the ways of layers by path, as --layout takes them."""
        return {layer.path: layer.how for layer in self.layers if layer.way is not BRANCHES}

    def own_positions(self, at: Mapping[str, int]) -> np.ndarray | None:
        """Returns the positions of sequences that the rank at these coordinates has; None if it has
        all."""
        return next((cut.of(at[axis]) for axis, cut in self.positions.items()), None)


UNSHARDED = Sharding(1, (), {}, {}, None)
"""Every rank has the whole model."""


# ---- descriptions of layers


def pooling_behind(graph: Graph, k: int) -> int | None:
    """Returns the node of the pooling that is fused with a layer; None if none is."""
    last = max([k, *(nodes[-1] for nodes in graph.fused if nodes[0] == k)])
    pool = graph.nodes[last]
    is_fused = last > k and pool.layer is MaxPool2d and has_2x2_windows(pool.settings)
    return last if is_fused else None


def made_by(graph: Graph, k: int) -> Edge:
    """Returns the output edge of a layer, after a pooling that is fused with it."""
    last = pooling_behind(graph, k)
    return graph.edges[graph.nodes[k if last is None else last].outputs[0]]


def is_listed(graph: Graph, node: Node, choice: NodeChoice) -> bool:
    """Returns True if a layer belongs in the list of layers: it has parameters, or is divided."""
    has_parameters = any(graph.variables[v].is_parameter for v in node.variables)
    return choice.way.rebuilds or (node.layer is not None and has_parameters)


def describe(graph: Graph, k: int, choice: NodeChoice, ranks: int, why: str) -> ShardedLayer:
    """Returns the description of a layer that is divided by `choice`."""
    node, way = graph.nodes[k], choice.way
    weight, y = variables_of(graph, node).get("weight"), graph.edges[node.outputs[0]]
    sizes = () if weight is None else graph.variables[weight].shape
    if way.input is ... and choice.output == POSITIONS.cut(y, ranks):
        way = way._replace(input=POSITIONS, output=POSITIONS)
    use = ShardedLayer(k, node.name, node.kind, way, sizes, choice.bounds, choice.gathers, why=why)
    if POSITIONS in way.markers:
        edge = graph.edges[node.inputs[0]] if way.input is POSITIONS else y
        along = POSITIONS.cut(edge, ranks)
        use = use._replace(position_bounds=along.bounds if along else ())
    return use._replace(sends=tuple(_sent(graph, use, ranks)))


def _sent(graph: Graph, layer: ShardedLayer, ranks: int) -> Iterator[LayerMessage]:
    """Yields the messages of a layer, without those that no rank sends, and without gradients that
    are not needed."""
    node = graph.nodes[layer.node]
    unsent = frozenset() if of_gradients(graph, node) else I
    way, bounds = layer.way, layer.bounds if layer.way.of_layout else layer.position_bounds
    for row in way.pattern.sends:
        sent = [row.each(graph, layer.node, ranks, r) for r in range(ranks)] if row.each else None
        if (passes := row.passes - unsent) and (sent is None or any(map(any, sent))):
            yield LayerMessage(row, row.carries(graph, node), passes, bounds)
    if layer.gathers:
        # what is sent is the output after a fused pooling; the cost of the choice counts it before
        y = made_by(graph, layer.node)
        cut = way.output.cut(y, ranks) if isinstance(way.output, Marker) else None
        yield _message(GATHER_OUTPUT, y.elements, cut.bounds if cut else layer.bounds)


def _message(row: Message, numbers: int, bounds: Bounds = ()) -> LayerMessage:
    """Returns a message of a layer, in all passes of its row."""
    return LayerMessage(row, numbers, row.passes, bounds)


def join_layers(call: BranchCall, ranks: int) -> list[ShardedLayer]:
    """Returns the entry of a join of branches, and one more entry for each further input with a
    gradient."""
    why = "a branch is whole on one rank"
    join = ShardedLayer(call.node, call.path, "Branches", BRANCHES, why=why)
    joins = _message(SUM_OUTPUT, call.result.elements)
    if call.join not in SUMS:
        join = join._replace(bounds=call.gathered(ranks))
        joins = _message(GATHER_OUTPUT, join.bounds[-1], join.bounds)
    back = [_message(SUM_GRADIENT, e.elements) for e in call.inputs if e.requires_grad]
    first = join._replace(sends=(joins, *back[:1]))
    return [first, *(join._replace(sends=(message,)) for message in back[1:])]

"""Sharding: the description of how the layers, activations and parameters of a graph are divided
among ranks along tp; `shard` computes it."""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnmpi.addons import Table
from nnmpi.nn import MaxPool2d, Module
from nnmpi.nn.graph import Call, Edge, Graph, Node
from nnmpi.nn.layers.pooling import has_2x2_windows
from nnmpi.parallel.tensor.choices import NodeChoice
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.possible import variables_of
from nnmpi.parallel.tensor.ways import (
    GATHER_OUTPUT,
    POSITIONS,
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
    """An entry in `Sharding.layers`: a use of a layer that has parameters or is divided.

    sizes            the shape of the whole weight
    bounds           the channels of each rank: outputs of a column, inputs of a row; empty for a
                     layer that every rank has whole
    gathers          whether a column gathers its output
    position_bounds  the positions of each rank if its input or output is cut along them
    sends            the messages that ranks send for it
    why              a text: how much the model sends, and how much with another way of this layer
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
        """The name of the way in which the layer is divided, such as "column"."""
        return self.way.pattern.how

    def part(self, rank: int) -> float:
        """Returns the share of the layer's channels that a rank has, from 0 to 1."""
        bounds = self.bounds
        return (bounds[rank + 1] - bounds[rank]) / bounds[-1] if bounds else 1.0

    @property
    def messages(self) -> str:
        """The messages that ranks send for the layer, as text."""
        return ", ".join(sent.message.words for sent in self.sends if sent.message.words)


class PositionCut(Protocol):
    """A division of the positions of sequences among the ranks along an axis of the mesh."""

    def of(self, rank: int, /) -> np.ndarray:
        """Returns the positions that a rank along the axis has, in increasing order."""

    def localise(self, e: int, rank: int, shape: list[int], /) -> None:
        """Changes `shape`, the shape of activation (edge) number `e`, in place: the length of its
        axis of positions becomes the number of positions that the rank has."""


class DividedCall(NamedTuple):
    """A call of a module, such as parallel branches, whose parts single ranks along tp compute.

    word         the word for its parts in messages, such as "branches"
    nodes        the graph nodes of its parts; the next node joins their outputs
    layers       the entries for the joining node in `Sharding.layers`
    part         the class that the module becomes; its `drop_others` frees the parameters of other
                 ranks
    attributes   those that the module gets, besides `comm`
    """

    path: str
    word: str
    nodes: range
    layers: tuple[ShardedLayer, ...]
    part: type[Any]
    attributes: Mapping[str, Any]


class OwnedParts(NamedTuple):
    """Parts of a model, such as parallel branches, that one rank along tp has and computes.

    calls      the calls of modules that are divided so, by the index of the node that joins their
               parts
    nodes      a dict: number of a graph node in such a part -> its rank along tp
    variables  a dict: number of a parameter or buffer of these nodes -> its rank along tp
    """

    calls: Mapping[int, DividedCall] = {}
    nodes: Mapping[int, int] = {}
    variables: Mapping[int, int] = {}

    def runs(self, node: int, rank: int) -> bool:
        """Returns True if a rank along tp computes a node of the graph."""
        return self.nodes.get(node, rank) == rank

    def has(self, variable: int, rank: int) -> bool:
        """True if a rank along tp has this variable, or a part of it."""
        return self.variables.get(variable, rank) == rank


NOTHING_OWNED = OwnedParts()


class Sharding(NamedTuple):
    """How layers, activations (edges), parameters and buffers of a model are divided among ranks.

    layers              those with parameters or that are divided, in the order in which they run
    edges               a dict: number of an edge -> the cut of its activation; others are whole
    variables           the same for the numbers of parameters and buffers
    output              the bounds of the channels of the output; None if it is whole
    partial_gradients   parameters that are whole on every rank, while each rank computes only a
                        part of the sum that is their gradient
    positions           a dict: axis of the mesh (such as cp) -> how sequences are cut along it
    """

    ranks: int
    layers: tuple[ShardedLayer, ...]
    edges: Mapping[int, AxisCut]
    variables: Mapping[int, AxisCut]
    output: Bounds | None
    partial_gradients: frozenset[int] = frozenset()
    positions: Mapping[str, PositionCut] = {}
    owned: OwnedParts = NOTHING_OWNED

    @property
    def ways(self) -> dict[str, str]:
        """The way in which each layer is divided, by its path, as --layout takes it."""
        joins = self.owned.calls
        return {layer.path: layer.how for layer in self.layers if layer.node not in joins}

    def own_positions(self, at: Mapping[str, int]) -> np.ndarray | None:
        """Returns the positions, in increasing order, of sequences of a rank at these coordinates;
        None: all."""
        return next((cut.of(at[axis]) for axis, cut in self.positions.items()), None)


UNSHARDED = Sharding(1, (), {}, {}, None)
"""The Sharding without tensor parallelism: every rank has the whole model."""


# ---- modules whose parts go to single ranks along tp


_MODULE_RULES: Table[Callable[[Graph, int], OwnedParts]] = Table("module_rules")
"""By a class of modules, as "module:name": the function that assigns the parts of such modules in a
graph to so many ranks along tp."""


def _key(layer: type[Module] | None) -> str:
    return f"{layer.__module__}:{layer.__name__}" if layer else ""


def divide_modules(graph: Graph, ranks: int) -> OwnedParts:
    """Decides which rank along tp gets which parts of modules, such as parallel branches, that are
    on single ranks. Raises ValueError if no division is possible."""
    owned = NOTHING_OWNED
    for key in dict.fromkeys(_key(call.layer) for call in outermost(graph)):
        calls, nodes, variables = _MODULE_RULES.needed(key)(graph, ranks)
        owned = OwnedParts(
            {**owned.calls, **calls}, {**owned.nodes, **nodes}, {**owned.variables, **variables}
        )
    return owned


def outermost(graph: Graph) -> Iterator[Call]:
    """Yields the calls of modules whose parts go to single ranks, except inside another."""
    calls = [call for call in graph.calls if _key(call.layer) in _MODULE_RULES.where]
    for call in calls:
        if not any(call.nodes != o.nodes and {*call.nodes} <= {*o.nodes} for o in calls):
            yield call


def overlapping(sets: Sequence[Set[Any]]) -> list[list[int]]:
    """Groups sets that have common elements, also through others; returns indices by group."""
    groups: list[tuple[Set[Any], list[int]]] = []
    for i, members_of in enumerate(sets):
        members = [i]
        for group in [group for group in groups if group[0] & members_of]:
            groups.remove(group)
            members_of, members = members_of | group[0], group[1] + members
        groups.append((members_of, members))
    return [members for _, members in groups]


# ---- descriptions of layers


def pooling_behind(graph: Graph, k: int) -> int | None:
    """Returns the pooling node fused with the layer of node k, or None."""
    last = max([k, *(nodes[-1] for nodes in graph.fused if nodes[0] == k)])
    pool = graph.nodes[last]
    is_fused = last > k and pool.layer is MaxPool2d and has_2x2_windows(pool.settings)
    return last if is_fused else None


def made_by(graph: Graph, k: int) -> Edge:
    """Returns the output edge of node k's layer, after a fused pooling."""
    last = pooling_behind(graph, k)
    return graph.edges[graph.nodes[k if last is None else last].outputs[0]]


def is_listed(graph: Graph, node: Node, choice: NodeChoice) -> bool:
    """True if `Sharding.layers` has the layer: with parameters, or divided."""
    has_parameters = any(graph.variables[v].is_parameter for v in node.variables)
    return choice.way.rebuilds or (node.layer is not None and has_parameters)


def describe(graph: Graph, k: int, choice: NodeChoice, ranks: int, why: str) -> ShardedLayer:
    """Returns the entry in `Sharding.layers` for a choice, and why."""
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
    """Yields the messages of a divided layer, without gradients that none needs."""
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
        yield message_of(GATHER_OUTPUT, y.elements, cut.bounds if cut else layer.bounds)


def message_of(row: Message, numbers: int, bounds: Bounds = ()) -> LayerMessage:
    """Returns a message of the kind `row` for one layer that carries `numbers` elements for each
    sample. `bounds` says which of the elements each rank contributes or gets."""
    return LayerMessage(row, numbers, row.passes, bounds)

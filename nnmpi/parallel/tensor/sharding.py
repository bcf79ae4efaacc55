"""Sharding: what of a graph is divided among ranks, and how, as a value; `shard` finds it."""

from collections.abc import Mapping
from typing import NamedTuple

from nnmpi.autograd.ops.join import SUMS
from nnmpi.nn import MaxPool2d
from nnmpi.nn.graph import Graph, Node
from nnmpi.nn.layers.pooling import has_2x2_windows
from nnmpi.parallel.positions import UNCUT, Positions
from nnmpi.parallel.tensor.branches import NOTHING, Divided, Owned
from nnmpi.parallel.tensor.choices import NodeChoice, gradients, moved, named, positions
from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.rules import BRANCHES, POSITIONS, WHOLE, Cut, Way


class ShardedLayer(NamedTuple):
    """One use of a layer that has parameters, or of which each rank has a part.

    node      its number in the graph
    how       "column", "row", "rows" (of an embedding), "channels", "positions", "copy", "branch"
              of a layer in one, or "branches" of their join
    sizes     of the whole weight
    bounds    the channels of each rank: outputs of a column, inputs of a row; empty for a copy
    gathers   whether a column gathers its output
    summed    numbers of a sample that ranks add up on the way forward
    back      numbers of the gradient of the input that they add up on the way back
    gathered  numbers that they gather on the way forward
    positions where its input or output is cut along positions, if it is
    moved     numbers that are gathered or reduce-scattered along them at a time
    why       what the model sends in all, and what it would send if this layer went another way
    """

    node: int
    path: str
    kind: str
    way: Way = WHOLE
    sizes: tuple[int, ...] = ()
    bounds: Bounds = ()
    gathers: bool = False
    summed: int = 0
    back: int = 0
    gathered: int = 0
    positions: Bounds = ()
    moved: int = 0
    why: str = ""

    @property
    def how(self) -> str:
        """The name of its way."""
        return self.way.how

    def part(self, rank: int) -> float:
        """How much of its channels a rank has."""
        bounds = self.bounds
        return (bounds[rank + 1] - bounds[rank]) / bounds[-1] if bounds else 1.0

    @property
    def messages(self) -> str:
        """What ranks send for it."""
        said = (
            (self.summed, "all-reduce of the output"),
            (self.back, "all-reduce of the gradient of the input"),
            (self.gathers, "all-gather of the output"),
            (self.moved and self.how == "column", "all-gather of the input, twice"),
            (self.moved and self.how == "column", "reduce-scatter of its gradient"),
            (self.moved and self.how != "column", "reduce-scatter of the output"),
            (self.moved and self.how != "column", "all-gather of its gradient"),
            (self.how == "counts", "all-gather of how many tokens chose each expert"),
            (self.how == "all-to-all", "all-to-all of tokens, and back of results"),
            (self.how == "all-to-all", "the same of their gradients"),
        )
        return ", ".join(words for there, words in said if there)


class Sharding(NamedTuple):
    """What of a graph is divided, and how.

    layers     in the order in which they run
    edges      where edges are cut, by number; others are whole on every rank
    variables  where parameters and buffers are cut
    terms      parameters that are whole on every rank, of whose gradients each has a term
    output     the bounds of the channels of the output; None if it is whole
    positions  where sequences are cut, among the ranks along cp
    owned      what one rank along tp has and computes alone
    """

    ranks: int
    layers: tuple[ShardedLayer, ...]
    edges: Mapping[int, Cut]
    variables: Mapping[int, Cut]
    output: Bounds | None
    terms: frozenset[int] = frozenset()
    positions: Positions = UNCUT
    owned: Owned = NOTHING

    def layer_of(self, node: int) -> ShardedLayer | None:
        """What is said of a node, if it is divided or has parameters."""
        return next((layer for layer in self.layers if layer.node == node), None)


UNSHARDED = Sharding(1, (), {}, {}, None)
"""Every rank has the whole model."""


# ---- what is said of a layer


def is_told(graph: Graph, node: Node, choice: NodeChoice) -> bool:
    """Whether a layer has parameters, or each rank a part of it."""
    has_parameters = any(graph.variables[v].is_parameter for v in node.variables)
    return choice.way.rebuilds or (node.layer is not None and has_parameters)


def described(graph: Graph, k: int, choice: NodeChoice, ranks: int, why: str) -> ShardedLayer:
    node, way = graph.nodes[k], choice.way
    weight = named(graph, node).get("weight")
    sizes = () if weight is None else graph.variables[weight].shape
    told = ShardedLayer(k, node.name, node.kind, way, sizes, choice.bounds, choice.gathers, why=why)
    if way.how in ("copy", "branch"):
        return told
    x, y = graph.edges[node.inputs[0]], graph.edges[node.outputs[0]]
    if way.input is ... and choice.output == positions(y, ranks):
        way = way._replace(input=POSITIONS, output=POSITIONS)
    along = positions(x if way.input is POSITIONS else y, ranks) if way.has_positions else None
    return told._replace(
        way=way,
        positions=along.bounds if along else (),
        moved=moved(graph, node, way),
        summed=y.numbers * way.sums_output,
        back=gradients(graph, node) * way.sums_gradient,
        gathered=_gathered(graph, k) * choice.gathers,
    )


def layers_of_join(call: Divided, ranks: int) -> list[ShardedLayer]:
    """The join of branches; and one entry more for each input behind the first."""
    bounds, is_sum = call.gathered(ranks), call.how in SUMS
    why = "a branch is whole on one rank"
    one = ShardedLayer(call.join, call.path, "Branches", BRANCHES, why=why)
    one = one if is_sum else one._replace(bounds=bounds)
    first, *others = [e.numbers for e in call.inputs if e.requires_grad] or [0]
    summed, gathered = call.result.numbers * is_sum, bounds[-1] * (not is_sum)
    joined = one._replace(summed=summed, gathered=gathered, back=first)
    return [joined, *(one._replace(back=n) for n in others)]


def _gathered(graph: Graph, k: int) -> int:
    """The numbers of a sample that a gather brings together: behind a pooling that is fused.

    The choice counts them before it, so that it does not depend on what is fused.
    """
    last = max(kept.nodes[-1] for kept in graph.kept if kept.nodes[0] == k)
    pool = graph.nodes[last]
    is_fused = pool.layer is MaxPool2d and has_2x2_windows(pool.settings)
    node = pool if is_fused else graph.nodes[k]
    return graph.edges[node.outputs[0]].numbers

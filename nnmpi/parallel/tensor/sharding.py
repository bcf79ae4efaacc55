"""Sharding: how a model is divided among ranks, as a value that `shard` makes of its graph."""

from typing import NamedTuple

from nnmpi.parallel.tensor.ops import Bounds
from nnmpi.parallel.tensor.rules import WHOLE, Cut, Way


class ShardedLayer(NamedTuple):
    """One use of a layer that has parameters, or of which each rank has a part.

    node      its number in the graph
    how       "column", "row", "rows" (of an embedding), "channels", or "copy"
    sizes     of the whole weight
    bounds    the channels of each rank: outputs of a column, inputs of a row; empty for a copy
    gathers   whether a column gathers its output
    summed    numbers of a sample that ranks add up on the way forward
    back      numbers of the gradient of the input that they add up on the way back
    gathered  numbers that they gather on the way forward
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
    why: str = ""

    @property
    def how(self) -> str:
        """The name of its way."""
        return self.way.how

    @property
    def messages(self) -> str:
        """What ranks send for it."""
        said = (
            (self.summed, "all-reduce of the output"),
            (self.back, "all-reduce of the gradient of the input"),
            (self.gathers, "all-gather of the output"),
        )
        return ", ".join(words for there, words in said if there)


class Sharding(NamedTuple):
    """What of a graph is divided, and how.

    layers     in the order in which they run
    edges      where each edge is cut, by its number; None: it is whole on every rank
    variables  the same of parameters and buffers
    output     the bounds of the channels of the output; None if it is whole
    """

    ranks: int
    layers: tuple[ShardedLayer, ...]
    edges: tuple[Cut | None, ...]
    variables: tuple[Cut | None, ...]
    output: Bounds | None

    def cut_of(self, variable: int) -> Cut | None:
        """Where a parameter or a buffer is cut."""
        return self.variables[variable] if self.variables else None

    def state_of(self, edge: int) -> Cut | None:
        """Where an edge is cut."""
        return self.edges[edge] if self.edges else None

    def layer_of(self, node: int) -> ShardedLayer | None:
        """What is said of a node, if it is divided or has parameters."""
        return next((layer for layer in self.layers if layer.node == node), None)

    def columns(self, rank: int, here: int) -> int:
        """The scores of a sample on all ranks, if this rank has so many."""
        if self.output is None:
            return here
        return here * self.output[-1] // (self.output[rank + 1] - self.output[rank])


UNSHARDED = Sharding(1, (), (), (), None)
"""Every rank has the whole model; `edges` and `variables` are not listed."""

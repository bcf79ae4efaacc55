"""Placement: which part of each activation and parameter the ranks of an arrangement have. It is
all that the proof takes from an arrangement to derive what has to be summed."""

from collections.abc import Mapping, Sequence

from nnmpi.nn.graph import Graph
from nnmpi.nn.recompute import recomputed_with
from nnmpi.parallel.arrangement.arrangement import LOCAL_SHAPES, Arrangement
from nnmpi.parallel.arrangement.division import StagePart
from nnmpi.parallel.tensor.ways import SAMPLES


class Placement:
    """Where the parts of a model are.

    graph   the model, as recorded on one rank
    sizes   the number of ranks along each axis of the mesh
    stages  the pipeline's stages: the coordinate along pp, and the nodes of each
    cuts    by axis and edge: the dimension along which ranks cut the activation
    held    by axis and variable: the dimension along which they cut the parameter or buffer
    owned   the parts of modules that one rank along tp has and computes alone
    shared  by axis: the nodes of which each rank computes some samples, and gathers the output
    ways    by node: the way in which ranks along tp divide it
    again   the nodes that backward passes run again
    """

    def __init__(self, a: Arrangement) -> None:
        self._a = a
        self.graph: Graph = a.graph
        self.sizes: Mapping[str, int] = a.mesh.axes
        self.stages: Sequence[StagePart] = a.division.stages
        samples = {
            e: d
            for e, edge in enumerate(a.graph.edges)
            for d, along in enumerate(edge.axes)
            if along.of_samples
        }
        self.cuts = {"dp": samples, **{axis: self._cut_along(axis) for axis in LOCAL_SHAPES}}
        variables = {v: cut.axis for v, cut in a.sharding.variables.items() if cut}
        self.held = {axis: variables if axis == "tp" else {} for axis in self.cuts}
        self.owned = a.sharding.owned
        self.again = _run_again(a)
        self.ways = {layer.node: layer.way for layer in a.sharding.layers}
        layers = {layer.node for layer in a.sharding.layers if SAMPLES in layer.way.markers}
        self.shared = {axis: layers if axis == "tp" else set[int]() for axis in self.cuts}

    def runs(self, k: int, at: Mapping[str, int]) -> bool:
        """True if the rank at these coordinates computes a node."""
        return self.owned.runs(k, at["tp"])

    def _cut_along(self, axis: str) -> dict[int, int]:
        """Returns the dimensions along which ranks along an axis cut activations: those in which
        the shape of a part is not that of the whole."""
        many = 2 * self.sizes[axis]  # samples, so that each rank has some
        cuts = dict[int, int]()
        for e, edge in enumerate(self.graph.edges):
            shape = [*edge.shape(many)]
            for r in range(self.sizes[axis] if self.sizes[axis] > 1 else 0):
                part = self._part(e, many, {axis: r})
                if part != shape:
                    cuts[e] = next(d for d, n in enumerate(shape) if part[d] != n)
        return cuts

    def _part(self, e: int, samples: int, at: Mapping[str, int]) -> list[int]:
        shape = [*self.graph.edges[e].shape(samples)]
        for axis, r in at.items():
            LOCAL_SHAPES[axis](self._a.sharding, e, r, shape)
        return shape

    def shape(self, e: int, samples: int, at: Mapping[str, int], axis: str) -> list[int]:
        """Returns the shape of an activation on a rank at these coordinates, if it were whole along
        `axis`; `samples` are those of this rank."""
        others = {other: at[other] for other in LOCAL_SHAPES if other != axis}
        return self._part(e, samples, others)


def _run_again(a: Arrangement) -> frozenset[int]:
    """Returns the nodes that backward passes run again, since they keep fewer activations."""
    by_option = (k for k, n in enumerate(a.graph.nodes) if recomputed_with(n, a.config.recompute))
    return frozenset(by_option).union(*a.graph.again)

"""Division: the pipeline stages of a model, with nodes and variables of each."""

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from nnmpi.nn.graph import Graph, Node
from nnmpi.options.config import Config
from nnmpi.parallel.arrangement.partition import Unit, bounds
from nnmpi.schedules.find import find
from nnmpi.schedules.placement import Place

UNIT_COSTS = "unit_costs"
"""The key of the costs of units among measured facts."""


class StagePart(NamedTuple):
    """A pipeline stage of a model.

    rank        the coordinate along pp of the ranks that have the stage
    nodes       the numbers of its nodes in the graph
    takes       the numbers of the graph's edges that enter it
    variables   the numbers of parameters and buffers that its nodes use, and of unused ones stored
                with it
    """

    rank: int
    nodes: range
    layers: int
    takes: tuple[int, ...]
    variables: tuple[int, ...]


class Division(NamedTuple):
    """The stages of a model in order, each a StagePart."""

    stages: tuple[StagePart, ...]

    @property
    def begins(self) -> list[int]:
        """The index of the layer with which each stage but the first begins."""
        return list(accumulate(stage.layers for stage in self.stages[:-1]))

    @property
    def place(self) -> tuple[int, ...]:
        """The coordinate along pp of each stage's rank."""
        return tuple(stage.rank for stage in self.stages)

    def of_rank(self, rank: int) -> dict[int, StagePart]:
        """Returns the stages on the rank with this coordinate along pp, by number."""
        return {s: stage for s, stage in enumerate(self.stages) if stage.rank == rank}

    def ranks(self) -> dict[int, tuple[int, ...]]:
        """Returns the coordinates along pp of the ranks that have a variable, by its number."""
        ranks_of: dict[int, set[int]] = {}
        for stage in self.stages:
            for v in stage.variables:
                ranks_of.setdefault(v, set()).add(stage.rank)
        return {v: tuple(sorted(ranks)) for v, ranks in ranks_of.items()}

    def tied(self, graph: Graph) -> dict[str, tuple[int, ...]]:
        """Returns, by path of a tied, trained parameter, the coordinates along pp of its ranks."""
        ranks_of = sorted(self.ranks().items())
        shared = ((graph.variables[v], ranks) for v, ranks in ranks_of if len(ranks) > 1)
        return {variable.path: ranks for variable, ranks in shared if variable.is_trained}

    def trained(self, graph: Graph, rank: int) -> list[int]:
        """Returns the numbers of the trained parameters of a rank along pp: unused ones first, then
        in the order of their use. Gradients become final in the reverse order."""
        held = {v for stage in self.of_rank(rank).values() for v in stage.variables}
        used = [v for v in graph.order if v in held]
        return [*(v for v in sorted(held - {*used}) if graph.variables[v].is_trained), *used]


def divide(graph: Graph, units: Sequence[Unit], cut: Sequence[int], place: Place) -> Division:
    """Divides a model into pipeline stages; stage s is on rank `place[s]` along pp. `cut` has the
    index of the first unit of each stage except the first.

    Raises ValueError if a buffer would be in two stages: it would be updated in another order than
    on one rank, or in two copies.
    """
    stages, buffers, crossings = list[StagePart](), dict[int, int](), graph.crossings()
    for s, (a, b) in enumerate(bounds(cut, len(units))):
        nodes = range(units[a].nodes.start, units[b - 1].nodes.stop)
        used = sorted({v for unit in units[a:b] for v in unit.variables})
        takes = crossings[nodes.start] if s else graph.inputs
        layers = sum(len(unit.layers) for unit in units[a:b])
        stages.append(StagePart(place[s], nodes, layers, takes, tuple(used)))
        for v in used:
            if not graph.variables[v].is_parameter and buffers.setdefault(v, s) != s:
                node = next(graph.nodes[k] for k in nodes if v in graph.nodes[k].variables)
                raise ValueError(
                    f"{node.name} ({node.kind}) is used in stages {buffers[v]} and {s}, but its "
                    "buffers cannot be in both: use a separate layer in each place, or a --cut "
                    "that keeps both uses in one stage"
                )
    return Division(tuple(stages))


def place_of(config: Config) -> tuple[int, ...]:
    """Returns each stage's rank along pp, as the config's schedule places it."""
    schedule = find(config.schedule)
    stages = schedule.stages_a_rank(config.virtual_stages)
    schedule.check(config.pp, config.micro_batches, stages)
    return schedule.place(config.pp, stages)


def work(graph: Graph, node: Node) -> int:
    """Returns the multiply-adds of a node's forward pass for one sample.

    A layer class may define `multiply_adds`. Else each weight matrix is multiplied once for each
    position of the output; a node without weight matrices counts one operation for each element.
    """
    numbers = sum(graph.edges[e].elements for e in node.outputs)
    if node.layer and (of_layer := vars(node.layer).get("multiply_adds")):
        return int(of_layer(node.settings, graph.edges[node.outputs[0]].sample, numbers))
    matrices = [graph.variables[v].shape for v in node.variables]
    wide = [shape for shape in matrices if len(shape) > 1]
    return sum(prod(shape) * numbers // shape[0] for shape in wide) if wide else numbers

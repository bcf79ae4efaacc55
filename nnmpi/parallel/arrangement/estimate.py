"""Where a model is cut on paper: by how much arithmetic its layers take, without measuring them."""

from collections.abc import Sequence
from math import prod

from nnmpi.nn.graph import Graph, Node
from nnmpi.parallel.arrangement.division import Division, divided
from nnmpi.parallel.arrangement.partition import Unit, cut, given_units, units


def estimated_division(graph: Graph, count: int, pp: int, given: str | None = None) -> Division:
    """The stages of a cut that is given, or of one whose stages compute about equally much."""
    if given is not None:
        found, chosen = given_units(given, graph, count)
        return divided(graph, found, chosen, pp)
    found = units(graph)
    if count == 1:
        return divided(graph, found, (), pp)
    costs = [_work(graph, unit) for unit in found]
    memory = [_memory(graph, unit) for unit in found]
    trained = [unit.is_trained for unit in found]
    return divided(graph, found, cut(costs, count, trained, memory, graph.notes), pp)


def _work(graph: Graph, unit: Unit) -> float:
    """Multiplications and additions for a sample, forward."""
    return float(sum(_work_of(graph, graph.nodes[k]) for k in unit.nodes))


def _work_of(graph: Graph, node: Node) -> int:
    """A matrix of weights is used once for each position of the output, other numbers once."""
    numbers = sum(graph.edges[e].numbers for e in node.outputs)
    matrices = [graph.variables[v].shape for v in node.variables]
    wide: Sequence[tuple[int, ...]] = [shape for shape in matrices if len(shape) > 1]
    if node.kind == "Embedding" or not wide:
        return numbers
    return sum(prod(shape) * numbers // shape[0] for shape in wide)


def _memory(graph: Graph, unit: Unit) -> float:
    """Bytes of parameters, and of the edges of a sample."""
    variables = {v for k in unit.nodes for v in graph.nodes[k].variables}
    edges = (e for k in unit.nodes for e in graph.nodes[k].outputs)
    parameters = sum(4 * graph.variables[v].size for v in variables)
    return float(parameters + sum(graph.edges[e].nbytes for e in edges))

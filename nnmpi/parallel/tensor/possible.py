"""Finds the ways in which ranks may divide a layer, such as column or row. They depend on the
layer's class, settings and arguments, but not on how its inputs are cut."""

from collections.abc import Collection
from typing import Any

from nnmpi.nn.graph import Graph, Node, TensorRef, VariableRef
from nnmpi.parallel.tensor.rules import OPS, rule_of, ways
from nnmpi.parallel.tensor.ways import POSITIONS, Marker, Way


def possible(graph: Graph, node: Node, cuts: Collection[Marker] = ()) -> list[Way]:
    """Returns the ways in which ranks may divide the layer of a node; none unless all inputs and
    outputs are tensors of samples. Only ways that cut channels need no marker in `cuts`."""
    edges = [graph.edges[e] for e in (*node.inputs, *node.outputs)]
    if node.layer is None or not is_plain(node) or not all(edge.of_samples for edge in edges):
        return []
    known, inputs = ways(node.layer), len(node.arguments[0])
    for cut in filter(None, (marker.of_layout for marker in cuts)):
        known = cut.ways(node.layer, known)
    fitting = (way for way in known if way.markers <= {*cuts})
    possible_ways = [way for way in fitting if way.inputs == inputs and way.fits(node.settings)]
    for way in possible_ways if rule_of(node.layer) is None else ():
        _check_own(graph, node, way)
    return possible_ways


def is_plain(node: Node) -> bool:
    """True if a layer takes activations only, and returns one."""
    args, named = node.arguments
    return not named and all(type(part) is TensorRef for part in (*args, node.result))


def keeps_cut(graph: Graph, node: Node) -> bool:
    """True if an op treats each element alone, and its other arguments are untrained scalars."""
    return node.op in OPS and all(_is_number(graph, a) for a in node.arguments[0])


def _is_number(graph: Graph, argument: Any) -> bool:
    if type(argument) is TensorRef:
        return True
    if type(argument) is VariableRef:  # each rank would have a part of its gradient
        used = graph.variables[argument.variable]
        return used.size == 1 and not used.is_trained
    return bool(getattr(argument, "size", 1) == 1)


def takes_samples(graph: Graph, node: Node) -> bool:
    """True if ranks can compute the layer for some samples each."""
    edges = [graph.edges[e] for e in (*node.inputs, *node.outputs)]
    whole_rows = (edge.of_samples and edge.axes[0].size == 1 for edge in edges)
    return node.layer is not None and bool(node.inputs) and is_plain(node) and all(whole_rows)


def follows(node: Node) -> bool:
    """Returns True if a layer has no parameters and works unchanged on a part of its input, such as
    ReLU, or, but for some layouts, pooling: its output is cut as its input is."""
    if node.layer is None or rule_of(node.layer) is None or node.variables:
        return False
    return not any(way.rebuilds for way in ways(node.layer))


def variables_of(graph: Graph, node: Node) -> dict[str, int]:
    """Returns the index in `graph.variables` of each variable of a layer, by attribute name."""
    by_name = {}
    for v in node.variables:
        for path in graph.variables[v].names:
            owner, _, name = path.rpartition(".")
            if owner == node.name:
                by_name[name] = v
    return by_name


def _check_own(graph: Graph, node: Node, way: Way) -> None:
    """Checks a way from the attribute `sharding` of a user's class; raises ValueError if it cuts an
    axis that does not exist, or if ranks would compute wrong values."""
    label = f"layer {node.name} ({node.kind}): the way {way.pattern.how!r} of its rule"
    if (way.input is POSITIONS) != (way.output is POSITIONS):
        raise ValueError(
            f"{label} cuts positions of input or output only: give POSITIONS for both, or neither"
        )
    for name, v in variables_of(graph, node).items():
        along, n = way.parameters.get(name), len(graph.variables[v].shape)
        if along is not None and not -n <= along < n:
            raise ValueError(f"{label} cuts axis {along} of {name}, which has {n} axes")
        if graph.variables[v].is_parameter and along is None and not way.markers:
            raise ValueError(
                f"{label} leaves {name} whole: a sum over ranks would add it once a rank, or each "
                "rank would have only a part of its gradient; cut it too, or make it a parameter "
                "of a layer of its own"
            )
    for axis, e in ((way.input, node.inputs[0]), (way.output, node.outputs[0])):
        n = len(graph.edges[e].sample)
        if not n or (isinstance(axis, int) and not -n <= axis < n):
            raise ValueError(f"{label} cuts axis {axis} of a sample, which has {n} axes")
    if way.input is None and way.output is ...:
        raise ValueError(f"{label} has output=..., the axis of the input, but input=None: name one")

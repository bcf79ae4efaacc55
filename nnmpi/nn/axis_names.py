"""Names of the axes of a graph, derived from the layers.

    images       batch, channels, rows, columns        Embedding       batch, length, channels
    features     batch, channels                       SelfAttention   batch, length, heads
    scores       batch, vocabulary, ...                Linear          batch, channels

A layer class names the last axis of its output in `last_axis`, and that of its input in
`last_input_axis`. Other outputs have the names of the first input, if it has as many axes.
"""

from collections.abc import Sequence

from nnmpi.nn.graph import Edge, Graph, Node
from nnmpi.nn.layers.basic import ChannelsFirst, Embedding
from nnmpi.nn.layers.conv import Conv1d

IMAGES = ("batch", "channels", "rows", "columns")
SEQUENCES = ("batch", "length", "channels")
BY_AXES = {2: ("batch", "channels"), 3: SEQUENCES, 4: IMAGES}


def with_names(graph: Graph) -> Graph:
    """Returns the graph with names for its axes; an axis that no rule names has the name ""."""
    names_of: dict[int, tuple[str, ...]] = {}
    for e in graph.inputs:
        edge = graph.edges[e]
        tokens = SEQUENCES[: len(edge.axes)] if edge.dtype.startswith(("int", "uint")) else ()
        names_of[e] = tokens or _default_names(edge)
    for node in graph.nodes:
        for e in node.outputs:
            names_of[e] = _output_names(node, [names_of[i] for i in node.inputs], graph.edges[e])
    for node in graph.nodes:
        if node.layer and (last := vars(node.layer).get("last_input_axis")):
            names_of[node.inputs[0]] = (*names_of[node.inputs[0]][:-1], last)
    _name_scores(graph, names_of)
    edges = (_named(edge, names_of.get(e, ())) for e, edge in enumerate(graph.edges))
    return graph._replace(edges=tuple(edges))


def _default_names(edge: Edge) -> tuple[str, ...]:
    n = len(edge.axes)
    return BY_AXES.get(n, ("batch", *[""] * (n - 1)) if edge.of_samples else ("",) * n)


def _output_names(node: Node, inputs: Sequence[tuple[str, ...]], edge: Edge) -> tuple[str, ...]:
    """Returns the names of the axes of an output, given those of each input's axes."""
    x = inputs[0] if inputs else ()
    if node.layer is Embedding:
        return (*x, "channels")
    if node.layer and x and (last := vars(node.layer).get("last_axis")):
        return (*x[:-1], last)
    if node.layer is ChannelsFirst and x:
        return (x[0], x[-1], *x[1:-1])
    if node.layer is Conv1d:
        return ("batch", "channels", "length")
    return x if len(x) == len(edge.axes) else _default_names(edge)


def _name_scores(graph: Graph, names_of: dict[int, tuple[str, ...]]) -> None:
    """Names the class axis "vocabulary", from the output back to the last layer with weights."""
    makers = {e: node for node in graph.nodes for e in node.outputs}
    e, axis = graph.outputs[0], 1
    while len(names_of.get(e, ())) > 1:
        names = [*names_of[e]]
        names[axis] = "vocabulary"
        names_of[e] = tuple(names)
        node = makers.get(e)
        if node is None or node.variables or len(node.inputs) != 1:
            return
        axis = -1 if node.layer is ChannelsFirst else axis
        e = node.inputs[0]


def _named(edge: Edge, names: Sequence[str]) -> Edge:
    if len(names) != len(edge.axes):
        return edge
    axes = zip(edge.axes, names, strict=True)
    return edge._replace(axes=tuple(axis._replace(name=name) for axis, name in axes))

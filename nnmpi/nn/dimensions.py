"""Names of the dimensions of a graph: of samples by their axes, of the rest by what layers do."""

from collections.abc import Callable, Sequence

from nnmpi.nn.graph import Axis, Edge, Graph, Node

BATCH, CLASSES = "batch", "classes"

OF_SAMPLES = {
    1: (BATCH,),
    2: (BATCH, "features"),
    3: (BATCH, "channels", "length"),
    4: (BATCH, "channels", "rows", "columns"),
}
"""Of floating-point samples, by the number of axes."""

Names = tuple[str, ...]


def named(graph: Graph) -> Graph:
    """The same graph, in which axes have names as far as they are known."""
    names: dict[int, Names] = {e: _of_samples(graph.edges[e]) for e in graph.inputs}
    for node in graph.nodes:
        there = [names[e] for e in node.inputs]
        for e in node.outputs:
            names[e] = _behind(node, graph.edges, there, graph.edges[e])
    for e in graph.outputs:
        if len(names[e]) > 1:
            names[e] = (names[e][0], CLASSES, *names[e][2:])
    edges = [
        edge._replace(
            axes=tuple(Axis(n, *axis[1:]) for n, axis in zip(names[e], edge.axes, strict=True))
        )
        for e, edge in enumerate(graph.edges)
    ]
    return graph._replace(edges=tuple(edges))


def _of_samples(edge: Edge) -> Names:
    n = len(edge.axes)
    if edge.dtype.startswith(("int", "uint")):
        return (BATCH, "length", *[""] * (n - 2))[:n]
    return OF_SAMPLES.get(n, (BATCH, *[""] * (n - 1)))


def _behind(node: Node, edges: Sequence[Edge], inputs: Sequence[Names], out: Edge) -> Names:
    """The names behind a node."""
    known = (OPS if node.layer is None else LAYERS).get(node.kind)
    first = inputs[0] if inputs else ()
    shape, before = out.axes, edges[node.inputs[0]].axes if node.inputs else ()
    if known is not None:
        found = known(node, first)
        if len(found) == len(shape):
            return found
    if len(before) == len(shape):
        return tuple(
            name if a.size == b.size and a.of_samples == b.of_samples else ""
            for name, a, b in zip(first, before, shape, strict=True)
        )
    others = (names for names in inputs if len(names) == len(shape))
    unknown = (BATCH if axis.of_samples and k == 0 else "" for k, axis in enumerate(shape))
    return next(others, tuple(unknown))


def _last_is_features(node: Node, first: Names) -> Names:
    return (*first[:-1], "features")


def _same(node: Node, first: Names) -> Names:
    return first


def _transposed(node: Node, first: Names) -> Names:
    axes = node.arguments[1].get("axes") or range(len(first))[::-1]
    return tuple(first[k] for k in axes)


LAYERS: dict[str, Callable[[Node, Names], Names]] = {
    "Linear": _last_is_features,
    "Embedding": lambda node, first: (*first, "features"),
    "Flatten": lambda node, first: (BATCH, "features"),
    **dict.fromkeys(
        ("Conv1d", "Conv2d", "ConvTranspose2d", "MaxPool1d", "MaxPool2d", "AvgPool1d", "AvgPool2d"),
        _same,
    ),
}
"""Names behind layers, by their kind. Of others, axes that keep their length keep their name."""

OPS: dict[str, Callable[[Node, Names], Names]] = {"transpose": _transposed}
"""The same for ops."""

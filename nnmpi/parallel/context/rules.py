"""Where the axis of positions goes through a model whose sequences are cut.

The rules of layers are in `tensor/rules.py`. What has none may mix positions, and is refused.
"""

from collections.abc import Iterator, Mapping

from nnmpi import nn
from nnmpi.nn.graph import Graph, Node, Use, Value
from nnmpi.parallel.sequence_cut import SequenceCut
from nnmpi.parallel.tensor.possible import is_plain
from nnmpi.parallel.tensor.rules import OPS, RULES


def cut_sequences(graph: Graph, ranks: int, length: int) -> SequenceCut:
    """Where the positions of each edge are; raises ValueError for what may mix them.

    Along the first axis behind the samples, inputs have `length` positions.
    """
    if length < 2 * ranks:
        raise ValueError(
            f"cp {ranks} cuts sequences into {2 * ranks} stretches, and they have {length} "
            f"positions: use at most --cp {length // 2}, or longer sequences"
        )
    axes = dict.fromkeys(graph.inputs, 1)
    for node in graph.nodes:
        axes |= dict.fromkeys(node.outputs, _behind(graph, node, axes, ranks))
    axes = {e: axis for e, axis in axes.items() if axis}
    for e in sorted(graph.shapes & axes.keys()):
        raise ValueError(
            f"cp {ranks} cuts sequences, and a `forward` of the model reads the shape of "
            f"{graph.edges[e].sample} of a sample, which ranks have parts of: make it a layer that "
            "has a rule, or use --tp, --pp or --dp"
        )
    rings = (k for k, node in enumerate(graph.nodes) if node.layer is nn.SelfAttention)
    return SequenceCut(ranks, length, axes, tuple(rings))


def _behind(graph: Graph, node: Node, axes: Mapping[int, int], ranks: int) -> int:
    """The axis of the positions in the outputs of a node; 0 if there are none."""
    found = {axes.get(e, 0) for e in node.inputs}
    if found <= {0}:
        return 0
    lengths = {len(graph.edges[e].axes) for e in (*node.inputs, *node.outputs)}
    axis = found.pop()
    behind = None
    if node.layer is None:
        is_alike = len(lengths) == 1 and not found and node.op in OPS
        behind = axis if is_alike and not any(_reach(graph, node, lengths.pop(), axis)) else None
    elif node.layer in RULES and len(node.arguments[0]) == 1 and is_plain(node):
        axes_of_x = len(graph.edges[node.inputs[0]].axes)
        behind = RULES[node.layer].positions(node.settings, axes_of_x, axis)
    if behind is None:
        what = " ".join(filter(None, dict.fromkeys((node.kind, node.name))))
        raise ValueError(
            f"cp {ranks} cuts sequences, and {what} may mix their positions: no rule says how "
            "ranks that have some of them compute it; use --tp, --pp or --dp"
        )
    return behind


def _reach(graph: Graph, node: Node, axes: int, axis: int) -> Iterator[bool]:
    """For each argument that is no tensor of samples: whether it differs between positions."""
    for argument in node.arguments[0]:
        if type(argument) is Value:
            continue
        is_use = type(argument) is Use
        array = graph.variables[argument.variable] if is_use else argument
        shape = getattr(array, "shape", ())
        k = axis - (axes - len(shape))
        yield k >= 0 and shape[k] != 1

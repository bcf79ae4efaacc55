"""Signatures: what layers compute, as sums over named indices, in the notation of einsum.

    Linear    input "*i", weight "oi", bias "o", output "*o"        y[*, o] = sum over i of x w + b

One rule follows for all layers. If the ranks along an axis each compute some values of an index,

    operands with the index       are cut along it, and so are their gradients
    operands without the index    are whole, and each rank has a term of their gradient
    the output                    is cut along it if it has the index; else each rank has a term
"""

from collections.abc import Mapping

from nnmpi import nn
from nnmpi.nn.graph import Graph, Node
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.parallel.tensor.rules import OPS, Signature, rule_of
from nnmpi.parallel.tensor.ways import POSITIONS, WHOLE, Along, Way

SAMPLES = "n"
MIXED = "#"
"""An index that a layer mixes with itself, as a convolution does image rows: each rank needs all of
its values."""

OTHERS = "ntuvw"
"""The indices for which `*` stands, in this order."""


def of_rank(indices: str, axes: int) -> str:
    """Returns the indices of an operand with so many axes, with letters in place of `*`."""
    return indices.replace("*", OTHERS[: axes - len(indices) + 1])


_SAME = Signature("*", "*")
_STATISTICS = {"running_mean": "c", "running_var": "c"}
_BATCH = {"weight": "c", "bias": "c", **_STATISTICS}
_EACH_POSITION = Signature("*#", "*#", {"weight": "#", "bias": "#"})
_OF_GROUPS = {"weight": "g###", "bias": "g"}

_OF_CORE: Mapping[type[nn.Module], Signature] = {
    nn.Linear: Signature("*i", "*o", {"weight": "oi", "bias": "o"}, behind=("bias",)),
    nn.Conv1d: Signature("ni#", "no#", {"weight": "oi#", "bias": "o"}, behind=("bias",)),
    nn.Conv2d: Signature(
        *("nix#", "nox#", {"weight": "oi##", "bias": "o"}), {"x": "rows"}, behind=("bias",)
    ),
    nn.Embedding: Signature("*", "*c", {"weight": "vc"}),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), _EACH_POSITION),
    nn.BatchNorm1d: Signature("nc", "nc", _BATCH, {SAMPLES: "moments"}),
    nn.BatchNorm2d: Signature("ncx#", "ncx#", _BATCH, {SAMPLES: "moments", "x": "moments"}),
    **dict.fromkeys((nn.GroupNorm, nn.InstanceNorm2d), Signature("nc##", "nc##", _BATCH)),
    nn.PReLU: Signature("ncx#", "ncx#", {"weight": "c"}, {"x": ""}),
    nn.ChannelsFirst: Signature("ntc", "nct"),
    nn.Flatten: Signature("nc##", "nc"),
    **dict.fromkeys((nn.MaxPool2d, nn.AvgPool2d), Signature("ncx#", "ncx#", {}, {"x": "rows"})),
    nn.AdaptiveAvgPool2d: Signature("ncx#", "nc##"),
    **dict.fromkeys((nn.MaxPool1d, nn.AvgPool1d), Signature("nc#", "nc#")),
    nn.Upsample: Signature("nc##", "nc##"),
    **dict.fromkeys((nn.Dropout, nn.Dropout2d, nn.Identity, *ELEMENTWISE), _SAME),
}
_GROUPS = Signature("ng##", "ng##", _OF_GROUPS)


def signature(graph: Graph, node: Node, way: Way | None) -> Signature | None:
    """Returns the signature of a node, which ranks along tp divide in a way. That of a layer that
    is not nnmpi's follows from the way, which its author has declared. None: nothing is known, and
    it is assumed that the node computes each sample alone."""
    if node.layer is None:
        return _SAME if node.op in OPS else None
    if node.layer in (nn.Conv1d, nn.Conv2d) and node.settings["groups"] != 1:
        return _GROUPS
    rule = rule_of(node.layer)
    known = _OF_CORE.get(node.layer) or (rule.signature if rule else None)
    return known or (_declared(graph, node, way) if way not in (None, WHOLE) else None)


def _declared(graph: Graph, node: Node, way: Way) -> Signature:
    axes = (len(graph.edges[e].axes) for e in (node.inputs[0], node.outputs[0]))
    x, y = (_cut(along, n) for along, n in zip((way.input, way.output), axes, strict=True))
    parameters = {name: MIXED * axis + "c" for name, axis in way.parameters.items()}
    return Signature(x, y, parameters)


def _cut(along: Along, axes: int) -> str:
    """Returns the indices of an operand with so many axes that a way cuts along one of them."""
    letters = [SAMPLES, *MIXED * (axes - 1)]
    if isinstance(along, int):
        letters[along + 1 if along >= 0 else along] = "c"
    elif along is POSITIONS:
        letters[1] = "t"
    return "".join(letters) if along is not ... else "*"

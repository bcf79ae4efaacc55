"""Divides layers by rows of images: IMAGE_ROWS, and choices of a search."""

from collections.abc import Iterator, Mapping, Sequence

from nnmpi import nn
from nnmpi.addons.layer_ways.image_rows import layers
from nnmpi.addons.layer_ways.image_rows.halo import Halo, windows_of
from nnmpi.arrays.kernels.window import Window, pair
from nnmpi.collectives.algorithms import Collective
from nnmpi.collectives.step import bounds
from nnmpi.nn.graph import Edge, Graph, Node
from nnmpi.parallel.tensor.choices import NodeChoice, NodeChoices, PlanCost
from nnmpi.parallel.tensor.sharding import made_by, pooling_behind
from nnmpi.parallel.tensor.ways import (
    GATHER_INPUT_GRADIENT,
    SUM_OUTPUT,
    AxisCut,
    F,
    I,
    LayoutCut,
    Marker,
    Message,
    Options,
    Pattern,
    Way,
    of_input,
)

# ---- the messages


def _of_row(graph: Graph, node: Node) -> int:
    """Returns the number of elements in one row of the input image, for one sample."""
    return of_input(graph, node) // graph.edges[node.inputs[0]].sample[1]


def _halo(graph: Graph, k: int, ranks: int, rank: int) -> Halo:
    """Returns other ranks' rows that a layer, with a fused pooling, needs."""
    node = graph.nodes[k]
    rows, _ = windows_of(node.settings)
    window: Window = rows if pooling_behind(graph, k) is None else rows.pooled()
    return Halo.of(window, graph.edges[node.inputs[0]].sample[1], ranks, rank)


def _sent(graph: Graph, k: int, ranks: int, rank: int) -> list[int]:
    """Returns the rows of a sample sent to each rank in layer k's forward."""
    return _halo(graph, k, ranks, rank).sent()


def _sent_back(graph: Graph, k: int, ranks: int, rank: int) -> list[int]:
    """Returns the rows whose gradient is sent to each rank in layer k's backward."""
    return _halo(graph, k, ranks, rank).received()


# the number of rows depends on the ranks, so `_choices` adds the cost
HALO = Message(Collective.MESSAGE, _of_row, F, 0, "messages of rows to neighbours", _sent)
HALO_GRADIENT = Message(
    Collective.MESSAGE, _of_row, I, 0, "the same of their gradients, back", _sent_back
)

# ---- the choices


def _cut(edge: Edge, ranks: int) -> AxisCut | None:
    """Returns each rank's rows of an activation, or None if it has none."""
    fits = len(edge.sample) == 3 and edge.of_samples and edge.sample[1] >= ranks
    return AxisCut(bounds(edge.sample[1], ranks), 1) if fits else None


def _choices(
    choices: NodeChoices, k: int, way: Way, states: Sequence[AxisCut | None]
) -> Iterator[NodeChoice]:
    """Yields the choices that divide layer k among ranks along image rows in the given way: one
    leaves the output divided by rows, the other gathers it. Yields nothing if the inputs are not
    cut as the way needs them; `states` are their cuts (None: whole)."""
    graph, node, ranks = choices.graph, choices.graph.nodes[k], choices.ranks
    x, y = graph.edges[node.inputs[0]], graph.edges[node.outputs[0]]
    rows, out_rows, pooled = (_cut(edge, ranks) for edge in (x, y, made_by(graph, k)))
    if rows is None or {*states} != {None if way.input is None else rows}:
        return
    if way.output is not None and pooled is None:
        return
    output = None if way.output is None else out_rows
    if _is_fused_pooling(graph, k):
        yield NodeChoice(way._replace(named=BARE), PlanCost(), rows.bounds, False, out_rows)
        return
    size = sum(graph.variables[v].size for v in node.variables)
    sent = -(-2 * size // max(choices.per_step, 1))  # a sum of gradients, once a step
    if HALO in way.pattern.sends:
        moved = sum(sum(_sent(graph, k, ranks, rank)) for rank in range(ranks))
        sent += moved * _of_row(graph, node) * (1 + x.requires_grad)
    cost = choices.cost(node, *way.pattern.sends).plus(PlanCost(sent=sent))
    choice = NodeChoice(way, cost, rows.bounds, False, output, choices.terms(node))
    yield choice
    if output is not None:
        yield choices.gathered(node, choice)


def _is_fused_pooling(graph: Graph, k: int) -> bool:
    """Returns True if node k is a pooling that is fused with the layer before it."""
    firsts = [k, *(nodes[0] for nodes in graph.fused if nodes[-1] == k)]
    return any(pooling_behind(graph, first) == k for first in firsts)


def _refuse(graph: Graph, k: int, ranks: int) -> None:
    """Raises ValueError if a layer cannot be cut along image rows as requested: it has no images,
    images with fewer rows than ranks, or runs fused with the layer before it."""
    node = graph.nodes[k]
    layer = f"layer {node.name} ({node.kind})"
    for does, edge in (("takes", graph.edges[node.inputs[0]]), ("makes", made_by(graph, k))):
        if len(edge.sample) != 3:
            raise ValueError(f"{layer} {does} no images that could be cut along rows: leave it out")
        if _cut(edge, ranks) is None:
            size = "x".join(map(str, edge.sample[1:]))
            raise ValueError(
                f"{layer} {does} images of {size}, whose rows cannot be divided among {ranks} "
                f"ranks along tp: use --tp {edge.sample[1]} or less, or cut this layer differently"
            )
    if _is_fused_pooling(graph, k):
        raise ValueError(
            f"{layer} is fused with the layer before it, and is always cut like that one: leave "
            "this layer out, and name the one before it"
        )


# ---- the ways


def _has_equal_windows(settings: Options) -> bool:
    """True if windows at borders are like others, so that rows can be cut."""
    excludes = not settings.get("count_include_pad", True) and pair(settings["padding"]) != (0, 0)
    unusual = (settings.get(name, False) for name in ("ceil_mode", "return_indices"))
    return settings.get("padding_mode", "zeros") == "zeros" and not (excludes or any(unusual))


def _is_mean(settings: Options) -> bool:
    return bool(settings["output_size"] == (1, 1))


def _ways(layer: type[nn.Module], of_rule: tuple[Way, ...]) -> tuple[Way, ...]:
    """Returns all ways to divide a layer class: the ways of its rule (`of_rule`), and those along
    image rows. Ways that suit any axis come last, so that more specific ones are preferred."""
    if layer not in WAYS:
        return of_rule
    return tuple(sorted((*of_rule, *WAYS[layer]), key=lambda way: way.input is ...))


HOW = "spatial"
"""The name of all of these ways."""

IMAGE_ROWS = Marker(_cut, of_layout=LayoutCut(HOW, _ways, _choices, _refuse))
"""Along the rows of images, the second axis of a sample (C, H, W)."""

BARE = Pattern(HOW)
SPATIAL = Pattern(HOW, (HALO, HALO_GRADIENT))
SPATIAL_OF_WHOLE = Pattern(HOW, (HALO, HALO_GRADIENT, GATHER_INPUT_GRADIENT))

_BY_ROWS = Way(IMAGE_ROWS, IMAGE_ROWS, named=BARE)
_WINDOWS = _BY_ROWS._replace(fits=_has_equal_windows, named=SPATIAL)
_CONV = _WINDOWS._replace(part=layers.SpatialConv2d)
_CONV_OF_WHOLE = _CONV._replace(input=None, named=SPATIAL_OF_WHOLE)
_MASKED_ROWS = _BY_ROWS._replace(sizes=("part",), part=layers.SpatialDropout)
_MEAN = Way(
    *(IMAGE_ROWS, None), fits=_is_mean, named=Pattern(HOW, (SUM_OUTPUT,)), part=layers.SpatialMean
)

WAYS: Mapping[type[nn.Module], tuple[Way, ...]] = {
    nn.Conv2d: (_CONV, _CONV_OF_WHOLE),
    nn.BatchNorm2d: (_BY_ROWS._replace(part=layers.SpatialBatchNorm2d),),
    nn.PReLU: (_BY_ROWS._replace(part=layers.SpatialPReLU),),
    nn.Dropout: (_MASKED_ROWS,),
    nn.Dropout2d: (_BY_ROWS._replace(part=layers.SpatialDropout2d),),
    nn.MaxPool2d: (_WINDOWS._replace(part=layers.SpatialMaxPool2d),),
    nn.AvgPool2d: (_WINDOWS._replace(part=layers.SpatialAvgPool2d),),
    nn.AdaptiveAvgPool2d: (_MEAN,),
}
"""The ways of layer classes themselves; a subclass may have another `forward`."""

"""What convolutions work in, and what they keep of which a rank has some input channels, or some
rows of the images."""

from collections.abc import Mapping, Sequence

import numpy as np

from nnmpi.collectives.step import bounds
from nnmpi.kernels.conv import ConvShape, scratch, sides_of
from nnmpi.kernels.im2col import NARROW
from nnmpi.kernels.window import windows
from nnmpi.nn.graph import Kept, Node
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.tensor.halo import Halo, windows_of
from nnmpi.parallel.tensor.row_graph import made_by, window_of_rows


def kept_of_sum(a: Arrangement, k: int, whole: float, samples: int, at: Mapping[str, int]) -> float:
    """What a convolution of some input channels keeps, if it keeps so much of all of them.

    It may take another algorithm than that of all channels: one of few channels keeps the columns
    that it gathers, and another one its input.
    """
    node, graph = a.graph.nodes[k], a.graph
    channels, of_all = _channels(a, k, at)
    if not reads_otherwise(a, k, at):
        return whole * channels / of_all
    if channels > NARROW:
        return 0.0
    columns = np.prod(_weight(a, node)[2:]) * np.prod(graph.edges[node.outputs[0]].sample[1:])
    return float(columns * channels * samples * a.dtype.itemsize)


def reads_otherwise(a: Arrangement, k: int, at: Mapping[str, int]) -> bool:
    """Whether it takes another algorithm of the channels that are here than of all of them."""
    channels, of_all = _channels(a, k, at)
    return _algorithm(a, k, channels) != _algorithm(a, k, of_all)


def kept_of_rows(
    a: Arrangement, k: int, whole: float, samples: int, at: Mapping[str, int]
) -> float:
    """What a layer on some rows keeps besides edges, if it keeps so much of all rows.

    A convolution keeps columns or tiles of its outputs, or else the rows that it needs, with their
    padding; a pooling a copy of these.
    """
    node, halo = a.graph.nodes[k], halo_of(a, k, at)
    x, (rows, columns) = a.graph.edges[node.inputs[0]], windows_of(node.settings)
    channels, height, width = x.sample
    if node.kind != "Conv2d":
        return whole * halo.height / rows.padded(height)
    if any(_algorithm(a, k, channels)):
        made = bounds(made_by(a.graph, k).sample[1], a.sharding.ranks)
        return whole * (made[at["tp"] + 1] - made[at["tp"]]) / made[-1]
    pixels = halo.height * columns.padded(width)
    return float(samples * channels * pixels * np.dtype(x.dtype).itemsize)


def halo_of(a: Arrangement, k: int, at: Mapping[str, int]) -> Halo:
    """What a rank along tp needs of the images that a layer takes, of which it has some rows."""
    height = a.graph.edges[a.graph.nodes[k].inputs[0]].sample[1]
    return Halo.of(window_of_rows(a.graph, k), height, a.sharding.ranks, at["tp"])


def _channels(a: Arrangement, k: int, at: Mapping[str, int]) -> tuple[int, int]:
    """The input channels here, and all of them."""
    (x, *_), graph = a.graph.nodes[k].inputs, a.graph
    return int(a.local_shape(x, 1, at)[1]), graph.edges[x].sample[0]


def _algorithm(a: Arrangement, k: int, channels: int) -> tuple[bool, bool]:
    """Whether a convolution of so many input channels is Winograd's, and whether it is narrow."""
    outputs = a.graph.edges[a.graph.nodes[k].outputs[0]].sample[1:]
    winograd = sides_of(_shape(a.graph.nodes[k]), channels, outputs, a.dtype)
    return bool(winograd), channels <= NARROW


def _shape(node: Node) -> ConvShape:
    """What a convolution computes, without what runs with it."""
    sizes = (node.settings[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    groups, algorithm = node.settings["groups"], node.settings["algorithm"]
    return ConvShape(windows(*sizes), groups, algorithm=algorithm)


def scratch_of(a: Arrangement, run: Kept, samples: int, at: Mapping[str, int]) -> int:
    """The bytes that a convolution of images works in, with the nodes that run with it."""
    nodes = [a.graph.nodes[k] for k in run.nodes]
    node, kinds = nodes[0], {node.kind for node in nodes}
    if node.kind != "Conv2d" or a.cluster.has_devices:
        return 0
    _, C, H, W = a.local_shape(node.inputs[0], samples, at)
    N, O, *_ = a.local_shape(node.outputs[0], samples, at)
    shape = _shape(node)
    some = C if shape.groups == 1 else _weight(a, node)[1]
    shape = shape._replace(groups=C // some, relu="ReLU" in kinds, pool="MaxPool2d" in kinds)
    weight = (O, some, *_weight(a, node)[2:])
    return scratch((N, C, H, W), weight, a.dtype.name, shape)


def _weight(a: Arrangement, node: Node) -> Sequence[int]:
    """The shape of the weight of a convolution, the whole one."""
    shapes = (a.graph.variables[v].shape for v in node.variables)
    return next(shape for shape in shapes if len(shape) == 4)

"""What convolutions keep of which a rank has some input channels."""

from collections.abc import Mapping

import numpy as np

from nnmpi.kernels.conv import ConvShape, sides_of
from nnmpi.kernels.im2col import NARROW
from nnmpi.kernels.window import windows
from nnmpi.parallel.arrangement.arrangement import Arrangement


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
    weight = next(graph.variables[v] for v in node.variables if len(graph.variables[v].shape) == 4)
    columns = np.prod(weight.shape[2:]) * np.prod(graph.edges[node.outputs[0]].sample[1:])
    return float(columns * channels * samples * a.dtype.itemsize)


def reads_otherwise(a: Arrangement, k: int, at: Mapping[str, int]) -> bool:
    """Whether it takes another algorithm of the channels that are here than of all of them."""
    channels, of_all = _channels(a, k, at)
    return _algorithm(a, k, channels) != _algorithm(a, k, of_all)


def _channels(a: Arrangement, k: int, at: Mapping[str, int]) -> tuple[int, int]:
    """The input channels here, and all of them."""
    (x, *_), graph = a.graph.nodes[k].inputs, a.graph
    return int(a.local_shape(x, 1, at)[1]), graph.edges[x].sample[0]


def _algorithm(a: Arrangement, k: int, channels: int) -> tuple[bool, bool]:
    """Whether a convolution of so many input channels is Winograd's, and whether it is narrow."""
    node, options = a.graph.nodes[k], a.graph.nodes[k].settings
    sizes = (options[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    shape = ConvShape(windows(*sizes), options["groups"], algorithm=options["algorithm"])
    outputs = a.graph.edges[node.outputs[0]].sample[1:]
    return bool(sides_of(shape, channels, outputs, a.dtype)), channels <= NARROW

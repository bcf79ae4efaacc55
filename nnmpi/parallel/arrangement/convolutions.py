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
    that it gathers, and the padded images.
    """
    node, graph = a.graph.nodes[k], a.graph
    channels = a.local_shape(node.inputs[0], 1, at)[1]
    of_all = graph.edges[node.inputs[0]].sample[0]
    if _algorithm(a, k, channels) == _algorithm(a, k, of_all):
        return whole * channels / of_all
    if channels > NARROW:
        return 0.0
    weight = next(graph.variables[v] for v in node.variables if len(graph.variables[v].shape) == 4)
    kernel = weight.shape[2:]
    columns = np.prod(kernel) * np.prod(graph.edges[node.outputs[0]].sample[1:])
    padded = np.prod(np.add(graph.edges[node.inputs[0]].sample[1:], kernel) - 1)
    return float((columns + padded) * channels * samples * a.updated_dtype.itemsize)


def _algorithm(a: Arrangement, k: int, channels: int) -> tuple[bool, bool]:
    """Whether a convolution of so many input channels is Winograd's, and whether it is narrow."""
    node, options = a.graph.nodes[k], a.graph.nodes[k].settings
    sizes = (options[name] for name in ("kernel_size", "stride", "padding", "dilation"))
    shape = ConvShape(windows(*sizes), options["groups"], algorithm=options["algorithm"])
    outputs = a.graph.edges[node.outputs[0]].sample[1:]
    return bool(sides_of(shape, channels, outputs, a.updated_dtype)), channels <= NARROW

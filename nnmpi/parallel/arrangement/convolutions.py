"""What convolutions keep of which a rank has some input channels."""

from collections.abc import Mapping

import numpy as np

from nnmpi.kernels.conv import MIN_CHANNELS
from nnmpi.kernels.im2col import NARROW
from nnmpi.parallel.arrangement.arrangement import Arrangement


def kept_of_sum(a: Arrangement, k: int, whole: float, samples: int, at: Mapping[str, int]) -> float:
    """What a convolution of some input channels keeps, if it keeps so much of all of them.

    It may take another algorithm than that of all channels: one of few channels keeps the columns
    that it gathers, and the padded images.
    """
    node, graph = a.graph.nodes[k], a.graph
    channels = a.local_shape(node.inputs[0], 1, at)[1]
    of_all = graph.edges[node.inputs[0]].sample[0]
    if _algorithm(a, channels) == _algorithm(a, of_all):
        return whole * channels / of_all
    if channels > NARROW:
        return 0.0
    weight = next(graph.variables[v] for v in node.variables if len(graph.variables[v].shape) == 4)
    kernel = weight.shape[2:]
    columns = np.prod(kernel) * np.prod(graph.edges[node.outputs[0]].sample[1:])
    padded = np.prod(np.add(graph.edges[node.inputs[0]].sample[1:], kernel) - 1)
    return float((columns + padded) * channels * samples * a.updated_dtype.itemsize)


def _algorithm(a: Arrangement, channels: int) -> str:
    """Which algorithm a 3x3 convolution of so many input channels takes (see `kernels/conv.py`)."""
    if channels >= MIN_CHANNELS and a.updated_dtype == "float32":
        return "winograd"
    return "narrow" if channels <= NARROW else "wide"

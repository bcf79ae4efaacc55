"""Rules of context parallelism: for each kind of layer, a function that returns which axis of the
output is that of sequence positions.

A rule gets the layer's settings, the number of axes of its input, and the input's axis of
positions.

edge     (N, T)  ──►  (N, T, C)  ──►  (N, T, C)  ──►  (N, C, T)
layer        Embedding       Linear, attention    ChannelsFirst
axis        1            1                1                2
"""

from collections.abc import Callable, Mapping

from nnmpi import nn
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.nn.layers.attention import SelfAttention
from nnmpi.nn.layers.gates import SwiGLU
from nnmpi.nn.layers.sequences import PositionalEmbedding
from nnmpi.parallel.tensor.ways import Options

PositionRule = Callable[[Options, int, int], int | None]
"""(settings of a layer, number of axes of its input, axis of positions in its input) -> the axis of
positions in its output; None if the layer mixes positions."""


def same_axis(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the axis unchanged: the layer treats each element separately."""
    return axis


def channels_last(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the axis unchanged; None if it is the last one, along which the layer mixes
    elements."""
    return axis if axis < axes - 1 else None


def before_normalized(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the axis unchanged; None if it is one of the last axes, over which `normalized_shape`
    normalizes."""
    return axis if axis < axes - len(settings["normalized_shape"]) else None


def channels_to_front(settings: Options, axes: int, axis: int) -> int | None:
    """Returns axis + 1, since the layer moves the last axis to index 1; None if the axis is the
    last one."""
    return axis + 1 if axis < axes - 1 else None


def of_sequences(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the axis unchanged if the input is (N, T, C) with positions along T; else None."""
    return axis if (axes, axis) == (3, 1) else None


RULES: Mapping[type[nn.Module], PositionRule] = {
    **dict.fromkeys((nn.Embedding, nn.Dropout, *ELEMENTWISE), same_axis),
    **dict.fromkeys((nn.Linear, SwiGLU), channels_last),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), before_normalized),
    **dict.fromkeys((PositionalEmbedding, SelfAttention), of_sequences),
    nn.ChannelsFirst: channels_to_front,
}
"""The rule of each layer class; subclasses are not included. Layers without a rule may mix
positions."""

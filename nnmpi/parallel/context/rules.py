"""Rules of positions: where the output of each kind of layer has the axis of positions.

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
"""Returns the axis of the positions in the output, given the settings of a layer, and the number of
axes and the axis of positions of its input; None if the layer mixes positions."""


def same_axis(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the same axis: each element is treated alone."""
    return axis


def channels_last(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the same axis unless it is the last one, along which the layer mixes elements."""
    return axis if axis < axes - 1 else None


def before_normalized(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the same axis unless it is one of the last axes, those of `normalized_shape`."""
    return axis if axis < axes - len(settings["normalized_shape"]) else None


def channels_to_front(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the next axis: the last axis becomes the second one."""
    return axis + 1 if axis < axes - 1 else None


def of_sequences(settings: Options, axes: int, axis: int) -> int | None:
    """Returns the axis of positions if the input is (N, T, C), else None."""
    return axis if (axes, axis) == (3, 1) else None


RULES: Mapping[type[nn.Module], PositionRule] = {
    **dict.fromkeys((nn.Embedding, nn.Dropout, *ELEMENTWISE), same_axis),
    **dict.fromkeys((nn.Linear, SwiGLU), channels_last),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), before_normalized),
    **dict.fromkeys((PositionalEmbedding, SelfAttention), of_sequences),
    nn.ChannelsFirst: channels_to_front,
}
"""The rule of each layer class itself; other layers may mix positions."""

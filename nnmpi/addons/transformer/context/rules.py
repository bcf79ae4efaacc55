"""Rules of context parallelism: for each kind of layer, a function that returns which axis of the
output is that of sequence positions, or None if the layer mixes positions.

A rule gets the layer's settings (its options), the number of axes of its input (`axes`), and the
index of the input's axis of positions (`axis`).

edge     (N, T)  ──►  (N, T, C)  ──►  (N, T, C)  ──►  (N, C, T)
layer        Embedding       Linear, attention    ChannelsFirst
axis        1            1                1                2
"""

from collections.abc import Callable, Mapping

from nnmpi import nn
from nnmpi.addons.transformer.attention import SelfAttention
from nnmpi.addons.transformer.gates import SwiGLU
from nnmpi.addons.transformer.sequences import PositionalEmbedding
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.parallel.tensor.ways import Options

PositionRule = Callable[[Options, int, int], int | None]
"""(settings, number of axes of the input, its axis of positions) -> that of the output, or None."""


def same_axis(settings: Options, axes: int, axis: int) -> int | None:
    """Positions stay where they are: the rule for layers that treat each element separately."""
    return axis


def channels_last(settings: Options, axes: int, axis: int) -> int | None:
    """Positions stay where they are; None if along the last axis, which the layer mixes."""
    return axis if axis < axes - 1 else None


def before_normalized(settings: Options, axes: int, axis: int) -> int | None:
    """Positions stay where they are; None if along an axis of the option `normalized_shape`."""
    return axis if axis < axes - len(settings["normalized_shape"]) else None


def channels_to_front(settings: Options, axes: int, axis: int) -> int | None:
    """Positions move to the next axis, as the last one moves to index 1; None if they lie along
    that."""
    return axis + 1 if axis < axes - 1 else None


def of_sequences(settings: Options, axes: int, axis: int) -> int | None:
    """Positions stay where they are if along T of inputs (N, T, C); None elsewhere."""
    return axis if (axes, axis) == (3, 1) else None


RULES: Mapping[type[nn.Module], PositionRule] = {
    **dict.fromkeys((nn.Embedding, nn.Dropout, *ELEMENTWISE), same_axis),
    **dict.fromkeys((nn.Linear, SwiGLU), channels_last),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), before_normalized),
    **dict.fromkeys((PositionalEmbedding, SelfAttention), of_sequences),
    nn.ChannelsFirst: channels_to_front,
}
"""The rule of each layer class, without subclasses; others may mix positions."""

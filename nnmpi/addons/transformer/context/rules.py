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
"""(settings of a layer, number of axes of its input, axis of positions in its input) -> the axis of
positions in its output; None if the layer mixes positions."""


def same_axis(settings: Options, axes: int, axis: int) -> int | None:
    """The rule of context parallelism for layers that treat each element separately: positions lie
    along the same axis of the output as of the input, so it returns `axis`. `settings` (options of
    the layer) and `axes` are not used."""
    return axis


def channels_last(settings: Options, axes: int, axis: int) -> int | None:
    """The rule of context parallelism for layers that mix elements along the last axis: returns
    `axis`, that of positions, unchanged, or None if it is the last of the `axes` axes of the input,
    so that sequences cannot be divided. `settings` (options of the layer) are not used."""
    return axis if axis < axes - 1 else None


def before_normalized(settings: Options, axes: int, axis: int) -> int | None:
    """The rule of context parallelism for layers that normalize over their last axes: returns
    `axis`, that of positions, unchanged, or None if it is one of those in `normalized_shape`, an
    option of the layer. `axes` is the number of axes of the input."""
    return axis if axis < axes - len(settings["normalized_shape"]) else None


def channels_to_front(settings: Options, axes: int, axis: int) -> int | None:
    """The rule of context parallelism for a layer that moves the last axis to index 1: returns
    `axis`, that of positions, + 1; or None if that is the last of the `axes` axes of the input.
    `settings` (options of the layer) are not used."""
    return axis + 1 if axis < axes - 1 else None


def of_sequences(settings: Options, axes: int, axis: int) -> int | None:
    """The rule of context parallelism for layers of sequences: returns `axis`, that of positions,
    unchanged if the input has the three axes (N, T, C) and positions lie along T; else None.
    `settings` (options of the layer) are not used."""
    return axis if (axes, axis) == (3, 1) else None


RULES: Mapping[type[nn.Module], PositionRule] = {
    **dict.fromkeys((nn.Embedding, nn.Dropout, *ELEMENTWISE), same_axis),
    **dict.fromkeys((nn.Linear, SwiGLU), channels_last),
    **dict.fromkeys((nn.LayerNorm, nn.RMSNorm), before_normalized),
    **dict.fromkeys((PositionalEmbedding, SelfAttention), of_sequences),
    nn.ChannelsFirst: channels_to_front,
}
"""The rule of each layer class, without subclasses; others may mix positions."""

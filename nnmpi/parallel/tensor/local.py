"""Layers that work on each channel alone, so that a rank needs only its own channels."""

from typing import NamedTuple

from nnmpi.comm import Comm
from nnmpi.nn import (
    AdaptiveAvgPool2d,
    AvgPool1d,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    GroupNorm,
    MaxPool1d,
    MaxPool2d,
    Module,
)
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.parallel.tensor.conv import bounds_behind
from nnmpi.parallel.tensor.parts import own, part_of
from nnmpi.parallel.tensor.sums import Bounds

POOLINGS = (MaxPool1d, MaxPool2d, AvgPool1d, AvgPool2d, AdaptiveAvgPool2d)


class Activation(NamedTuple):
    """What is known of a sharded activation.

    `axis` of a sample: 0 in images (C, H, W), -1 in features. A channel may be several features in
    a row, behind Flatten.
    """

    bounds: Bounds
    axis: int


def after(layer: Module, state: Activation) -> Activation | None:
    """The activation behind a layer that works on each channel alone; None if it does not."""
    kind, images = type(layer), state.axis == 0
    if kind in ELEMENTWISE or kind is Dropout:
        return state
    if images and (kind in POOLINGS or kind is BatchNorm2d):
        return state
    if kind is BatchNorm1d or (isinstance(layer, GroupNorm) and _has_whole_groups(layer, state)):
        return state
    if images and isinstance(layer, Conv2d) and layer.groups > 1:
        bounds = bounds_behind(layer, state.bounds)
        return None if bounds is None else state._replace(bounds=bounds)
    if images and isinstance(layer, Flatten) and (layer.start_dim, layer.end_dim) == (1, -1):
        return state._replace(axis=-1)
    return None


def _has_whole_groups(layer: GroupNorm, state: Activation) -> bool:
    """Whether each group is on one rank.

    Of features it is not known: in (N, T, F) the channels of a GroupNorm are those of T.
    """
    size = layer.num_channels // layer.num_groups
    fits = state.bounds[-1] == layer.num_channels and not any(b % size for b in state.bounds)
    return state.axis == 0 and fits


def scaled(what: str, bounds: Bounds, features: int) -> Bounds:
    """The bounds of features of which each channel has equally many, in a row."""
    channels = bounds[-1]
    if features % channels:
        raise ValueError(
            f"{what}: it takes {features} features, and the layers before it have {channels} "
            "channels, of which each must become equally many; let the sizes fit"
        )
    return tuple(b * (features // channels) for b in bounds)


def batch_norm(layer: BatchNorm1d | BatchNorm2d, bounds: Bounds, comm: Comm) -> Module:
    """This rank's channels of a layer, with its values."""
    (start, stop), tracks = own(bounds, comm), layer.track_running_stats
    options = layer.eps, layer.momentum, layer.weight is not None, tracks
    new = type(layer)(layer.num_features, *options, part=(start, stop))
    new.weight = part_of(layer.weight, 0, bounds, comm)
    new.bias = part_of(layer.bias, 0, bounds, comm)
    if not tracks:
        return new
    for name in ("running_mean", "running_var"):
        setattr(new, name, getattr(layer, name)[start:stop].copy())
    new.num_batches_tracked = layer.num_batches_tracked.copy()
    return new


def group_norm(layer: GroupNorm, bounds: Bounds, comm: Comm) -> Module:
    """This rank's channels of a layer, in whole groups, with its values."""
    options = layer.num_groups, layer.num_channels, layer.eps, layer.weight is not None
    new = GroupNorm(*options, part=own(bounds, comm))
    new.weight = part_of(layer.weight, 0, bounds, comm)
    new.bias = part_of(layer.bias, 0, bounds, comm)
    return new

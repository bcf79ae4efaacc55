"""parallelize(model, comm): the layers of a model replaced by those of images cut by rows."""

from collections.abc import Callable, Iterator
from typing import Any

from nnmpi.comm import Comm
from nnmpi.nn.layers.basic import Flatten
from nnmpi.nn.layers.conv import Conv2d
from nnmpi.nn.layers.norm import BatchNorm2d
from nnmpi.nn.layers.pooling import AvgPool2d, MaxPool2d
from nnmpi.nn.module import Module
from nnmpi.nn.sequential import Sequential, flattened, only_runs_layers, put
from nnmpi.parallel.spatial.layers import (
    SpatialAvgPool2d,
    SpatialBatchNorm2d,
    SpatialConv2d,
    SpatialFlatten,
    SpatialMaxPool2d,
    SpatialMean,
)
from nnmpi.parallel.tensor.rules import RULES


def parallelize(model: Sequential, comm: Comm) -> Sequential:
    """The model itself, which now takes rows of images: each rank brings its own (`scatter_rows`).

    Up to the first Flatten or SpatialMean, layers are replaced under the same names, and keep their
    parameters; from there on all ranks compute the same. Every rank calls it, with equal models.
    """
    if not only_runs_layers(model):
        raise ValueError(
            f"parallelize: {type(model).__name__} is no nn.Sequential, so the order of its layers "
            "is not known; build it from the layers of nnmpi.parallel.spatial"
        )
    made: dict[Module, Module] = {}
    for path, layer in list(_cut(model)):
        if layer not in made:
            made[layer] = _counterpart(layer, comm)
        put(model, path, made[layer])
    return model


def _cut(model: Sequential) -> Iterator[tuple[str, Module]]:
    """(path, layer) of the layers to replace; raises ValueError for one that needs whole images."""
    for path, layer in flattened(model):
        rows = RULES[type(layer)].rows if type(layer) in RULES else None
        if rows is None and not isinstance(layer, SpatialMean):
            raise ValueError(
                f"parallelize: layer {path} is {layer!r}, which cannot take rows of images; put it "
                "behind a Flatten or a SpatialMean, or build the model from the layers of "
                "nnmpi.parallel.spatial and gather_rows"
            )
        if rows is not None and not rows.fits(vars(layer)):
            raise ValueError(
                f"parallelize: layer {path} is {layer!r}: rows of images are pooled with "
                "ceil_mode=False and count_include_pad=True only; leave these options out, or put "
                "the layer behind a Flatten or a SpatialMean"
            )
        if rows is not None and rows.needs:
            yield path, layer
        if rows is None or rows.needs == "gather":
            return


def _counterpart(layer: Module, comm: Comm) -> Module:
    """The spatial layer with the options of this one; parameters and buffers move there."""
    new = COUNTERPARTS[type(layer)](layer, comm)
    new.train(layer.training)
    for name in (*layer._parameters, *layer._buffers):
        value = getattr(layer, name)
        delattr(layer, name)  # else it stays the parent of the parameter
        setattr(new, name, value)
    return new


def _conv(layer: Any, comm: Comm) -> Module:
    channels = layer.in_channels, layer.out_channels
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.groups
    has_bias = layer.bias is not None
    return SpatialConv2d(*channels, *sizes, has_bias, algorithm=layer.algorithm, comm=comm)


def _max_pool(layer: Any, comm: Comm) -> Module:
    sizes = layer.kernel_size, layer.stride, layer.padding, layer.dilation
    return SpatialMaxPool2d(*sizes, comm=comm)


def _avg_pool(layer: Any, comm: Comm) -> Module:
    return SpatialAvgPool2d(layer.kernel_size, layer.stride, layer.padding, comm=comm)


def _batch_norm(layer: Any, comm: Comm) -> Module:
    options = layer.eps, layer.momentum, layer.weight is not None, layer.track_running_stats
    return SpatialBatchNorm2d(layer.num_features, *options, comm=comm)


def _flatten(layer: Any, comm: Comm) -> Module:
    return SpatialFlatten(layer.start_dim, layer.end_dim, comm=comm)


COUNTERPARTS: dict[type[Module], Callable[[Any, Comm], Module]] = {
    Conv2d: _conv,
    MaxPool2d: _max_pool,
    AvgPool2d: _avg_pool,
    BatchNorm2d: _batch_norm,
    Flatten: _flatten,
}
"""How the spatial layer for each one that needs something of other ranks (`Rule.rows`) is made."""

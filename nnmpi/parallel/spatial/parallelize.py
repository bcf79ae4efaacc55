"""parallelize(model, comm): the layers of a model become those of images cut by rows."""

from collections.abc import Iterator, Mapping
from typing import Any

from nnmpi import nn
from nnmpi.comm import Comm
from nnmpi.nn.sequential import forget_steps, only_runs_layers
from nnmpi.parallel.spatial import layers
from nnmpi.parallel.tensor.rules import RULES

SPATIAL: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: layers.SpatialConv2d,
    nn.MaxPool2d: layers.SpatialMaxPool2d,
    nn.AvgPool2d: layers.SpatialAvgPool2d,
    nn.BatchNorm2d: layers.SpatialBatchNorm2d,
    nn.Flatten: layers.SpatialFlatten,
}
"""The spatial class of each layer that needs something of other ranks (`Rule.rows`)."""


def parallelize(model: nn.Sequential, comm: Comm) -> nn.Sequential:
    """The model itself, which now takes rows of images: each rank brings its own (`scatter_rows`).

    Up to the first Flatten or SpatialMean, layers get the spatial class, and keep all that they
    have; from there on all ranks compute the same. Every rank calls it, with equal models.
    """
    if not only_runs_layers(model):
        raise ValueError(
            f"parallelize: {type(model).__name__} is no nn.Sequential, so the order of its layers "
            "is not known; build it from the layers of nnmpi.parallel.spatial"
        )
    for layer in list(_cut(model)):
        if type(layer) in SPATIAL:  # once, if it is in two places
            layer.__class__, layer.comm = SPATIAL[type(layer)], comm
    forget_steps(model)
    return model


def _cut(model: nn.Sequential) -> Iterator[Any]:
    """The layers to change; raises ValueError for one that needs whole images."""
    for path, layer in model.named_modules():
        if only_runs_layers(layer):
            continue
        rows = RULES[type(layer)].rows if type(layer) in RULES else None
        if rows is None and not isinstance(layer, layers.SpatialMean):
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
            yield layer
        if rows is None or rows.needs == "gather":
            return

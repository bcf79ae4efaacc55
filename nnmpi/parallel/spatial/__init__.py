"""Spatial parallelism: images cut by rows over ranks, for samples too large for one rank."""

from nnmpi.parallel.spatial.halo import gather_rows, row_bounds, scatter_rows
from nnmpi.parallel.spatial.layers import (
    SpatialAvgPool2d,
    SpatialBatchNorm2d,
    SpatialConv2d,
    SpatialFlatten,
    SpatialMaxPool2d,
    SpatialMean,
    parallelize,
)

__all__ = [
    "SpatialAvgPool2d",
    "SpatialBatchNorm2d",
    "SpatialConv2d",
    "SpatialFlatten",
    "SpatialMaxPool2d",
    "SpatialMean",
    "gather_rows",
    "parallelize",
    "row_bounds",
    "scatter_rows",
]

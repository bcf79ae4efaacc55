"""Spatial parallelism: images cut by rows over ranks, for samples too large for one rank."""

from nnmpi.parallel.spatial.layers import (
    SpatialAvgPool2d,
    SpatialBatchNorm2d,
    SpatialConv2d,
    SpatialFlatten,
    SpatialMaxPool2d,
    SpatialMean,
)
from nnmpi.parallel.spatial.parallelize import parallelize
from nnmpi.parallel.spatial.rows import gather_rows, row_bounds, scatter_rows

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

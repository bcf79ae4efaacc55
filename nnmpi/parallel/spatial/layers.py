"""Layers of images that are cut by rows over ranks: the ordinary ones, with a Comm.

Arguments, and names and shapes in the state dict, are those of the ordinary layers. Every rank has
whole copies of weights; their gradients are summed over the ranks, so the copies stay equal. Layers
that treat each pixel alone, such as ReLU, need no counterpart here.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from nnmpi import nn
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import conv
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.ops.pool import check_window
from nnmpi.autograd.recording import recording
from nnmpi.backend import Array
from nnmpi.comm import Comm
from nnmpi.kernels.conv import Shape
from nnmpi.kernels.pool import avg_pool2d, max_pool2d
from nnmpi.kernels.window import Size, Windows, windows
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.data.batch_stats import Synced
from nnmpi.parallel.spatial import ops
from nnmpi.parallel.spatial.halo import Halo
from nnmpi.parallel.spatial.rows import Rows, gather_rows
from nnmpi.parallel.tensor.ops import copy, reduce


class Spatial(nn.Module):
    """The base of these layers: the arguments of the ordinary one, and a Comm."""

    def __init__(self, *arguments: Any, comm: Comm, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.comm = comm


class SpatialConv2d(Spatial, nn.Conv2d):
    """Convolution; the rows that its windows need of other ranks are exchanged."""

    fuses_as = nn.Conv2d

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        x = as_tensor(x)
        both = windows(self.kernel_size, self.stride, self.padding, self.dilation)
        shape = Shape(both, self.groups, relu, pool, self.algorithm, bool(recording.get()))
        rows = Rows.of("SpatialConv2d", x, self.comm)
        conv.check_conv2d(rows.shape, x.dtype, self.weight, shape)
        return apply(
            ops.conv2d,
            x,
            copy(self.weight, self.comm),
            None if self.bias is None else copy(self.bias, self.comm),
            halo=Halo.of("SpatialConv2d", rows, both[0].pooled() if pool else both[0]),
            shape=shape,
        )


class SpatialMaxPool2d(Spatial, nn.MaxPool2d):
    """The maximum of each window."""

    fuses_as = nn.MaxPool2d

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        *,
        comm: Comm,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation, comm=comm)

    def forward(self, x: Tensor) -> Tensor:
        both = windows(self.kernel_size, self.stride, self.padding, self.dilation)
        return _pooled(self, x, both, max_pool2d, float("-inf"))


class SpatialAvgPool2d(Spatial, nn.AvgPool2d):
    """The mean of each window, zeros of the padding included."""

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, *, comm: Comm
    ) -> None:
        super().__init__(kernel_size, stride, padding, comm=comm)

    def forward(self, x: Tensor) -> Tensor:
        both = windows(self.kernel_size, self.stride, self.padding)
        return _pooled(self, x, both, partial(avg_pool2d, count_include_pad=True), 0.0)


def _pooled(
    layer: Spatial, x: Tensor, both: Windows, kernel: Callable[..., Any], padding: float
) -> Tensor:
    """x pooled by a kernel, to which the padding is this number."""
    name = type(layer).__name__
    x = as_tensor(x)
    rows = Rows.of(name, x, layer.comm)
    check_window(name, rows.shape, both)
    halo = Halo.of(name, rows, both[0])
    return apply(ops.pool2d, x, kernel=kernel, padding=padding, windows=both, halo=halo)


class SpatialBatchNorm2d(Spatial, nn.BatchNorm2d):
    """Batch normalisation with statistics over the rows of all ranks."""

    def normalised(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, batch_stats: BatchStats
    ) -> Tensor:
        weight, bias = (None if t is None else copy(t, self.comm) for t in (weight, bias))
        return super().normalised(x, weight, bias, _OverRows(self.comm, batch_stats))


class _OverRows:
    """`BatchStats` over the rows of all ranks, then over what `samples` joins: other samples."""

    def __init__(self, comm: Comm, samples: BatchStats) -> None:
        self._rows, self._samples = Synced(comm), samples

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        # running statistics follow the whole batch, so the moments of these samples are not tracked
        of_samples = self._rows.moments(local, lambda moments: None)
        return self._samples.moments(of_samples, track)

    def sum(self, sums: Array) -> Array:
        return self._samples.sum(self._rows.sum(sums))


class SpatialFlatten(Spatial, nn.Flatten):
    """The rows of all ranks put together, then flattened: what follows is the same on all ranks.

    Each rank then holds whole images of features. Where these are too large, use SpatialMean.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(gather_rows(as_tensor(x), self.comm))


class SpatialMean(Spatial):
    """The mean of each channel over the whole image, (N, C), on all ranks: global average pooling.

    N * C numbers are summed over the ranks.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        _, _, height, width = Rows.of("SpatialMean", x, self.comm).shape
        return reduce(x.sum(axis=(2, 3)) * (1 / (height * width)), self.comm)

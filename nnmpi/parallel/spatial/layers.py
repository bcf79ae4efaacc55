"""Layers of images that are cut by rows over ranks: the ordinary ones, with a Comm.

Names and shapes in the state dict are those of the ordinary layers. Every rank has whole copies of
weights; their gradients are summed over the ranks, so the copies stay equal. Layers that treat each
pixel alone, such as ReLU, need no counterpart here.
"""

from functools import partial

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import conv
from nnmpi.autograd.ops.pool import check_window
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm
from nnmpi.kernels.conv import Shape
from nnmpi.kernels.pool import avg_pool2d, max_pool2d
from nnmpi.kernels.window import Size, Windows, windows
from nnmpi.nn.layers.basic import Flatten
from nnmpi.nn.layers.conv import Conv2d
from nnmpi.nn.layers.norm import BatchNorm2d
from nnmpi.nn.layers.pooling import AvgPool2d, MaxPool2d
from nnmpi.nn.module import Module
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.spatial import ops
from nnmpi.parallel.spatial.batch_stats import OverRows
from nnmpi.parallel.spatial.halo import Halo
from nnmpi.parallel.spatial.rows import Rows, gather_rows
from nnmpi.parallel.tensor.ops import copy, reduce


class SpatialConv2d(Conv2d):
    """Convolution; the rows that its windows need of other ranks are exchanged."""

    fuses_as = Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        *,
        algorithm: str = "auto",
        comm: Comm,
    ) -> None:
        channels = in_channels, out_channels
        super().__init__(
            *channels, kernel_size, stride, padding, dilation, groups, bias, algorithm=algorithm
        )
        self.comm = comm

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


class SpatialMaxPool2d(MaxPool2d):
    """The maximum of each window."""

    fuses_as = MaxPool2d

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        *,
        comm: Comm,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        both = windows(self.kernel_size, self.stride, self.padding, self.dilation)
        return _pooled("SpatialMaxPool2d", x, both, _MAX, self.comm)


class SpatialAvgPool2d(AvgPool2d):
    """The mean of each window, zeros of the padding included."""

    def __init__(
        self, kernel_size: Size, stride: Size | None = None, padding: Size = 0, *, comm: Comm
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        both = windows(self.kernel_size, self.stride, self.padding)
        return _pooled("SpatialAvgPool2d", x, both, _MEAN, self.comm)


_MAX = ops.Pool(max_pool2d, float("-inf"))
_MEAN = ops.Pool(partial(avg_pool2d, count_include_pad=True), 0.0)


def _pooled(name: str, x: Tensor, both: Windows, pool: ops.Pool, comm: Comm) -> Tensor:
    x = as_tensor(x)
    rows = Rows.of(name, x, comm)
    check_window(name, rows.shape, both)
    return apply(ops.pool2d, x, pool=pool, windows=both, halo=Halo.of(name, rows, both[0]))


class SpatialBatchNorm2d(BatchNorm2d):
    """Batch normalisation with statistics over the rows of all ranks."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        comm: Comm,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.comm = comm

    def normalised(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, batch_stats: BatchStats
    ) -> Tensor:
        weight, bias = (None if t is None else copy(t, self.comm) for t in (weight, bias))
        return super().normalised(x, weight, bias, OverRows(self.comm, batch_stats))


class SpatialFlatten(Flatten):
    """The rows of all ranks put together, then flattened: what follows is the same on all ranks.

    Each rank then holds whole images of features. Where these are too large, use SpatialMean.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1, *, comm: Comm) -> None:
        super().__init__(start_dim, end_dim)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(gather_rows(as_tensor(x), self.comm))


class SpatialMean(Module):
    """The mean of each channel over the whole image, (N, C), on all ranks: global average pooling.

    N * C numbers are summed over the ranks.
    """

    def __init__(self, *, comm: Comm) -> None:
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        _, _, height, width = Rows.of("SpatialMean", x, self.comm).shape
        return reduce(x.sum(axis=(2, 3)) * (1 / (height * width)), self.comm)

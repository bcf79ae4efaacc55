"""Layers of images that are cut by rows over ranks: the ordinary ones, with a Comm.

Names and shapes in the state dict are those of the ordinary layers. Every rank has whole copies of
weights; their gradients are summed over the ranks, so the copies stay equal. Layers that treat each
pixel alone, such as ReLU, need no counterpart here.
"""

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import conv
from nnmpi.autograd.recording import recording
from nnmpi.comm import Comm
from nnmpi.kernels.conv import Shape
from nnmpi.nn.layers import AvgPool2d, Conv2d, Flatten, MaxPool2d
from nnmpi.nn.module import Module
from nnmpi.nn.norm import BatchNorm2d
from nnmpi.nn.passes import BatchStats
from nnmpi.parallel.spatial import ops
from nnmpi.parallel.spatial.batch_stats import OverRows
from nnmpi.parallel.spatial.halo import Halo
from nnmpi.parallel.spatial.rows import Rows, gather_rows
from nnmpi.parallel.spatial.window import Window
from nnmpi.parallel.tensor.ops import copy, reduce


class SpatialConv2d(Conv2d):
    """Convolution; the rows that its windows need of other ranks are exchanged."""

    fuses_as = Conv2d

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        padding: int = 0,
        *,
        bias: bool = True,
        algorithm: str = "auto",
        comm: Comm,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            bias=bias,
            algorithm=algorithm,
        )
        self.comm = comm

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        x, k, s, p = as_tensor(x), self.kernel_size, self.stride, self.padding
        rows = Rows.of("SpatialConv2d", x, self.comm)
        conv.check_conv2d(rows.shape, x.dtype, self.weight, s, p, pool)
        window = Window(k, s, p)
        return apply(
            ops.conv2d,
            x,
            copy(self.weight, self.comm),
            None if self.bias is None else copy(self.bias, self.comm),
            halo=Halo.of("SpatialConv2d", rows, window.pooled() if pool else window),
            shape=Shape(s, p, relu, pool, self.algorithm, recording.get()),
        )


class SpatialMaxPool2d(MaxPool2d):
    """The maximum of each window."""

    fuses_as = MaxPool2d

    def __init__(
        self, kernel_size: int, stride: int | None = None, padding: int = 0, *, comm: Comm
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        window = Window(self.kernel_size, self.stride, self.padding)
        return _pooled("SpatialMaxPool2d", x, window, _MAX, self.comm)


class SpatialAvgPool2d(AvgPool2d):
    """The mean of each window."""

    def __init__(
        self, kernel_size: int, stride: int | None = None, padding: int = 0, *, comm: Comm
    ) -> None:
        super().__init__(kernel_size, stride, padding)
        self.comm = comm

    def forward(self, x: Tensor) -> Tensor:
        window = Window(self.kernel_size, self.stride, self.padding)
        return _pooled("SpatialAvgPool2d", x, window, _MEAN, self.comm)


_MAX, _MEAN = ops.Pool(conv.max_pool2d, float("-inf")), ops.Pool(conv.avg_pool2d, 0.0)


def _pooled(name: str, x: Tensor, window: Window, pool: ops.Pool, comm: Comm) -> Tensor:
    x = as_tensor(x)
    rows = Rows.of(name, x, comm)
    conv.check_window(name, rows.shape, window.kernel, window.padding)
    return apply(ops.pool2d, x, pool=pool, window=window, halo=Halo.of(name, rows, window))


class SpatialBatchNorm2d(BatchNorm2d):
    """Batch normalisation with statistics over the rows of all ranks."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        comm: Comm,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine)
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

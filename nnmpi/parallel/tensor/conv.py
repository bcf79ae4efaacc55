"""Convolutions with divided output (Column) or input channels (Row)."""

from typing import Any

from nnmpi.arrays.kernels.window import Size
from nnmpi.comm import Comm
from nnmpi.nn import Conv1d, Conv2d
from nnmpi.parallel.tensor.layers import ColumnSharded, Product, RowSharded


class _ShardedConvolution(Product):
    """The base class of convolutions whose channels are divided among ranks: arguments are the
    usual ones, without `groups`, with a Comm, and `gather_output` or `bounds`."""

    axis = 1

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        comm: Comm,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        *,
        bias: bool = True,
        algorithm: str = "auto",
        **part: Any,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation
        super().__init__(*sizes, bias=bias, algorithm=algorithm)  # type: ignore[call-arg]
        self.keep_part(comm, **part)


class ColumnConv2d(_ShardedConvolution, ColumnSharded, Conv2d):
    """A Conv2d of which each rank computes some output channels (see `ColumnSharded`)."""

    fuses_as = Conv2d


class RowConv2d(_ShardedConvolution, RowSharded, Conv2d):
    """A Conv2d with divided input channels (see `RowSharded`); ReLU and pooling follow the sum."""


class ColumnConv1d(_ShardedConvolution, ColumnSharded, Conv1d):
    """A Conv1d of which each rank computes some output channels (see `ColumnSharded`)."""


class RowConv1d(_ShardedConvolution, RowSharded, Conv1d):
    """A Conv1d with divided input channels (see `RowSharded`)."""

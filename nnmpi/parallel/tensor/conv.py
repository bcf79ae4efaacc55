"""Convolutions whose channels are divided among the ranks of a Comm: see `layers.py`."""

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import conv
from nnmpi.comm import Comm
from nnmpi.kernels.window import Size
from nnmpi.nn import Conv1d, Conv2d
from nnmpi.parallel.tensor import ops, products
from nnmpi.parallel.tensor.layers import Column, Row, check_bounds
from nnmpi.parallel.tensor.parts import divided
from nnmpi.parallel.tensor.sums import Bounds


class ColumnConv2d(Column, Conv2d):
    """Conv2d of which each rank computes some output channels.

    The input is whole on all ranks. The output is sharded, with `bounds`; with `gather_output`
    it is whole.
    """

    fuses_as = Conv2d

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
        gather_output: bool = False,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size
        super().__init__(*sizes, stride, padding, dilation, bias=bias, algorithm=algorithm)
        self.comm, self.gather_output = comm, gather_output
        self.bounds = divided(out_channels, comm.size, f"ColumnConv2d with {out_channels} outputs")
        self._take()

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        """`relu` and `pool` apply ReLU and a 2x2 max-pool in the same op."""
        fused = {"relu": relu, "pool": pool}
        options = {"convolution": conv.conv2d, "comm": self.comm, **fused, **self.options()}
        y = apply(products.column_conv, x, self.weight, self.bias, **options)
        return ops.gather(y, self.comm, self.bounds, 1) if self.gather_output else y


class RowConv2d(Row, Conv2d):
    """Conv2d of which each rank has some input channels.

    The input is sharded, with `bounds`; the output is whole. The bias is a copy on each rank, and
    is added after the sum. ReLU and pooling come after the sum too, so they are not fused.
    """

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
        bounds: Bounds | None = None,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size
        super().__init__(*sizes, stride, padding, dilation, bias=bias, algorithm=algorithm)
        self.comm = comm
        self.bounds = bounds or divided(
            in_channels, comm.size, f"RowConv2d with {in_channels} inputs"
        )
        check_bounds(self.bounds, in_channels, comm, "RowConv2d")
        self._take()

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        options = {"convolution": conv.conv2d, "comm": self.comm, **self.options()}
        return apply(products.row_conv, x, self.weight, self.bias, **options)


class ColumnConv1d(Column, Conv1d):
    """Conv1d of which each rank computes some output channels, as ColumnConv2d."""

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
        gather_output: bool = False,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias
        )
        self.comm, self.gather_output = comm, gather_output
        self.bounds = divided(out_channels, comm.size, f"ColumnConv1d with {out_channels} outputs")
        self._take()

    def forward(self, x: Tensor) -> Tensor:
        options = {"convolution": conv.conv1d, "comm": self.comm, **self.options()}
        y = apply(products.column_conv, x, self.weight, self.bias, **options)
        return ops.gather(y, self.comm, self.bounds, 1) if self.gather_output else y


class RowConv1d(Row, Conv1d):
    """Conv1d of which each rank has some input channels, as RowConv2d."""

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
        bounds: Bounds | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias
        )
        self.comm = comm
        self.bounds = bounds or divided(
            in_channels, comm.size, f"RowConv1d with {in_channels} inputs"
        )
        check_bounds(self.bounds, in_channels, comm, "RowConv1d")
        self._take()

    def forward(self, x: Tensor) -> Tensor:
        options = {"convolution": conv.conv1d, "comm": self.comm, **self.options()}
        return apply(products.row_conv, x, self.weight, self.bias, **options)

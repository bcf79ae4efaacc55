"""Layers of pooling: windows of one size, or so many parts of an image."""

from collections.abc import Sequence

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.functional import as_tensor
from nnmpi.autograd.ops import pool
from nnmpi.kernels.window import Size, pair
from nnmpi.nn.layers.sizes import each_axis
from nnmpi.nn.module import Module


class _Pool2d(Module):
    """The base of the poolings: a window, its stride and padding."""

    ceil_mode: bool

    def _take_sizes(self, kernel_size: Size, stride: Size | None, padding: Size) -> None:
        """The sizes as they were given, checked."""
        stride = kernel_size if stride is None else stride
        name = type(self).__name__
        each_axis(name, 2, 1, kernel_size=kernel_size)
        each_axis(name, 2, 1, stride=stride)
        each_axis(name, 2, 0, padding=padding)
        self.kernel_size, self.stride, self.padding = kernel_size, stride, padding

    def extra_repr(self) -> str:
        ceil_mode = ", ceil_mode=True" if self.ceil_mode else ""
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}{ceil_mode}"


class MaxPool2d(_Pool2d):
    """The maximum of each window.

    `ceil_mode`: a last window that begins inside the image or its padding counts, also if it ends
    behind.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        *,
        ceil_mode: bool = False,
    ) -> None:
        self._take_sizes(kernel_size, stride, padding)
        each_axis("MaxPool2d", 2, 1, dilation=dilation)
        self.dilation, self.ceil_mode = dilation, ceil_mode

    @property
    def is_2x2(self) -> bool:
        """Whether the windows are 2x2, side by side: a convolution before it can do that too."""
        sizes = pair(self.kernel_size), pair(self.stride), pair(self.padding), pair(self.dilation)
        return sizes == ((2, 2), (2, 2), (0, 0), (1, 1)) and not self.ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        return apply(
            pool.max_pool2d,
            as_tensor(x),
            kernel=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            dilation=self.dilation,
            ceil_mode=self.ceil_mode,
        )


class AvgPool2d(_Pool2d):
    """The mean of each window.

    The zeros of the padding count, unless `count_include_pad` is False. `ceil_mode` as in
    MaxPool2d.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        self._take_sizes(kernel_size, stride, padding)
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def extra_repr(self) -> str:
        counts = "" if self.count_include_pad else ", count_include_pad=False"
        return super().extra_repr() + counts

    def forward(self, x: Tensor) -> Tensor:
        return apply(
            pool.avg_pool2d,
            as_tensor(x),
            kernel=self.kernel_size,
            stride=self.stride,
            padding=self.padding,
            ceil_mode=self.ceil_mode,
            count_include_pad=self.count_include_pad,
        )


class AdaptiveAvgPool2d(Module):
    """The means of as many parts of an image as `output_size` says, for images of any size.

    One number, or (rows, columns), either of which may be None: as many as the image has.
    """

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        given = output_size if isinstance(output_size, Sequence) else (output_size, output_size)
        each_axis("AdaptiveAvgPool2d", 2, 1, output_size=[1 if n is None else n for n in given])
        self.output_size = tuple(given)

    def forward(self, x: Tensor) -> Tensor:
        return apply(pool.adaptive_avg_pool2d, as_tensor(x), size=self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"

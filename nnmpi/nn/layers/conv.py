"""Layers of convolution: of images, of sequences, and transposed."""

from math import prod
from typing import Any

from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import conv
from nnmpi.autograd.recording import recording
from nnmpi.kernels.conv import CONVOLUTIONS
from nnmpi.kernels.window import Size
from nnmpi.nn import init
from nnmpi.nn.layers.sizes import check_sizes, each_axis
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter

PADDINGS = ("same", "valid")


class _Convolution(Module):
    """What convolutions share: their sizes, one for each axis, and weight and bias.

    The weight is (first, second / groups, *kernel_size) in memory (*kernel_size, second, first).
    """

    padding: tuple[int, ...] | str
    weight: Parameter
    bias: Parameter | None

    def _take_sizes(
        self,
        axes: int,
        channels: tuple[int, int],
        kernel_size: Size,
        stride: Size,
        dilation: Size,
        groups: int,
    ) -> None:
        """All sizes but the padding, checked, one for each axis."""
        name = type(self).__name__
        self.in_channels, self.out_channels = channels
        check_sizes(name, 0, in_channels=channels[0], out_channels=channels[1])
        check_sizes(name, 1, groups=groups)
        if channels[0] % groups or channels[1] % groups:
            raise ValueError(
                f"{name}: {channels[0]} input and {channels[1]} output channels cannot be divided "
                f"into {groups} groups: let groups divide both"
            )
        self.groups = groups
        self.kernel_size = each_axis(name, axes, 1, kernel_size=kernel_size)
        self.stride = each_axis(name, axes, 1, stride=stride)
        self.dilation = each_axis(name, axes, 1, dilation=dilation)

    def _draw(self, first: int, second: int, bias: bool) -> None:
        """Weight and bias, within PyTorch's bounds."""
        shape = (first, second // self.groups, *self.kernel_size)
        fan = init.fan_in(prod(shape[1:]))
        self.weight = Parameter.drawn(shape, fan, (*range(2, len(shape)), 1, 0))
        self.bias = Parameter.drawn((self.out_channels,), fan) if bias else None

    def _checked_padding(self, padding: Size | str) -> tuple[int, ...] | str:
        """The padding, one size for each axis or its name."""
        name = type(self).__name__
        if not isinstance(padding, str):
            return each_axis(name, len(self.kernel_size), 0, padding=padding)
        if padding not in PADDINGS:
            raise ValueError(f"{name}: padding {padding!r} is none of {', '.join(PADDINGS)}")
        if padding == "same" and max(self.stride) > 1:
            raise ValueError(
                f"{name}: padding='same' needs stride=1, and the stride is {self.stride}: give the "
                "padding as numbers"
            )
        return padding

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
        shown += f"stride={self.stride}"
        for name, usual in _USUAL.items():
            value = getattr(self, name, usual)
            if value != usual and value != (usual,) * len(self.kernel_size):
                shown += f", {name}={value!r}"
        return shown + (", bias=False" if self.bias is None else "")


_USUAL = {"padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
"""Options that are shown where they have other values."""


class Conv2d(_Convolution):
    """Convolution of images (N, C, H, W); weight (out, in / groups, kh, kw).

    Sizes are one number, or a tuple for rows and columns. `padding` may be "same" or "valid".
    """

    op = staticmethod(conv.conv2d)

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
    ) -> None:
        if algorithm not in CONVOLUTIONS:
            raise ValueError(
                f"Conv2d: algorithm {algorithm!r} is none of {', '.join(CONVOLUTIONS)}"
            )
        self._take_sizes(2, (in_channels, out_channels), kernel_size, stride, dilation, groups)
        self.padding = self._checked_padding(padding)
        self.algorithm = algorithm
        self._draw(out_channels, in_channels, bias)

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        """`relu` and `pool` apply ReLU and a 2x2 max-pool in the same op."""
        options = self.options()
        return apply(self.op, x, self.weight, self.bias, relu=relu, pool=pool, **options)

    def options(self) -> dict[str, Any]:
        """The options of the op, but for what is fused."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
            "algorithm": self.algorithm,
            "keep": bool(recording.get()),
        }


class Conv1d(_Convolution):
    """Convolution of sequences (N, C, L); weight (out, in / groups, k).

    `padding` may be "same" or "valid".
    """

    op = staticmethod(conv.conv1d)

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
    ) -> None:
        self._take_sizes(1, (in_channels, out_channels), kernel_size, stride, dilation, groups)
        self.padding = self._checked_padding(padding)
        self._draw(out_channels, in_channels, bias)

    def forward(self, x: Tensor) -> Tensor:
        return apply(self.op, x, self.weight, self.bias, **self.options())

    def options(self) -> dict[str, Any]:
        """The options of the op, but for what is fused."""
        return {
            "stride": self.stride[0],
            "padding": self.padding if isinstance(self.padding, str) else self.padding[0],
            "dilation": self.dilation[0],
            "groups": self.groups,
            "keep": bool(recording.get()),
        }


class ConvTranspose2d(_Convolution):
    """Transposed convolution of images (N, C, H, W); weight (in, out / groups, kh, kw).

    It is what Conv2d does to the gradient of its output: a stride enlarges the image. The output
    has `output_padding` more rows and columns, which tells apart the sizes of image that a stride
    makes equal.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
    ) -> None:
        self._take_sizes(2, (in_channels, out_channels), kernel_size, stride, dilation, groups)
        self.padding = each_axis("ConvTranspose2d", 2, 0, padding=padding)
        self.output_padding = each_axis("ConvTranspose2d", 2, 0, output_padding=output_padding)
        sizes = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(extra >= max(s, d) for extra, s, d in sizes):
            raise ValueError(
                f"ConvTranspose2d: output_padding={output_padding} must be less than the stride "
                f"{self.stride} or the dilation {self.dilation}"
            )
        self._draw(in_channels, out_channels, bias)

    def forward(self, x: Tensor) -> Tensor:
        return apply(
            conv.conv_transpose2d,
            x,
            self.weight,
            self.bias,
            stride=self.stride,
            padding=self.padding,
            output_padding=self.output_padding,
            groups=self.groups,
            dilation=self.dilation,
        )

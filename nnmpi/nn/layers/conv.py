"""Convolution layers: of images, of sequences, and transposed."""

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, ClassVar

from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.conv import CONVOLUTIONS
from nnmpi.arrays.kernels.window import Size
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import conv
from nnmpi.autograd.ops.resample import PAD_MODES
from nnmpi.autograd.recording import recording
from nnmpi.nn import initial
from nnmpi.nn.layers.basic import check_choice, check_sizes, each_axis
from nnmpi.nn.module import Module
from nnmpi.nn.parameter import Parameter

PADDINGS = ("same", "valid")


def check_groups(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    """Raises ValueError unless a layer's channels can be divided into groups."""
    if in_channels % groups or out_channels % groups:
        raise ValueError(
            f"{name}: {in_channels} input and {out_channels} output channels cannot be divided "
            f"into {groups} groups: groups must divide both"
        )


class _Convolution(Module):
    """The base class of convolutions. The weight is (out, in / groups, *kernel_size), and in memory
    (*kernel_size, in / groups, out); if transposed, in and out are swapped."""

    axes: ClassVar[int]
    op: ClassVar[Callable[..., Result]]
    algorithms: ClassVar[tuple[str, ...]] = ("auto",)
    is_transposed = False

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
        padding_mode: str = "zeros",
        *,
        algorithm: str = "auto",
    ) -> None:
        name = type(self).__name__
        check_choice(name, "algorithm", algorithm, self.algorithms)
        self.algorithm = algorithm
        check_sizes(name, 0, in_channels=in_channels, out_channels=out_channels)
        check_sizes(name, 1, groups=groups)
        if groups > 1:
            check_groups(name, in_channels, out_channels, groups)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = each_axis(name, self.axes, 1, kernel_size=kernel_size)
        self.stride = each_axis(name, self.axes, 1, stride=stride)
        self.dilation = each_axis(name, self.axes, 1, dilation=dilation)
        self.padding, self.padding_mode = self._checked_padding(padding), padding_mode
        modes = ("zeros",) if self.is_transposed else ("zeros", *PAD_MODES)
        check_choice(name, "padding_mode", padding_mode, modes)
        if padding_mode != "zeros":
            vars(self)["op"] = partial(conv.after_padding, self.op)
        first, second = out_channels, in_channels
        if self.is_transposed:
            first, second = second, first
        shape = (first, second // groups, *self.kernel_size)
        fan = initial.fan_in(prod(shape[1:]))  # within PyTorch's bounds
        self.weight = Parameter.lazy(shape, fan, (*range(2, len(shape)), 1, 0))
        self.bias = Parameter.lazy((out_channels,), fan) if bias else None

    def _checked_padding(self, padding: Size | str) -> tuple[int, ...] | str:
        """Returns the padding, one size for each axis, "same" or "valid", or raises ValueError."""
        name = type(self).__name__
        if not isinstance(padding, str) or self.is_transposed:
            return each_axis(name, self.axes, 0, padding=padding)  # type: ignore[arg-type]
        check_choice(name, "padding", padding, PADDINGS)
        if padding == "same" and max(self.stride) > 1:
            raise ValueError(
                f"{name}: padding='same' needs stride=1, and the stride is {self.stride}: give the "
                "padding as numbers"
            )
        return padding

    def forward(self, x: Tensor) -> Tensor:
        return apply(self.op, x, self.weight, self.bias, **self.options())

    def options(self) -> dict[str, Any]:
        """Returns the keyword arguments of the op, such as stride and padding (integers if there is
        one axis), without those of layers that are fused with it, such as relu=True."""
        sizes: dict[str, Any] = {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
        }
        if self.axes == 1:
            sizes = {k: v if isinstance(v, str) else v[0] for k, v in sizes.items()}
        if self.padding_mode != "zeros":
            sizes["padding_mode"] = self.padding_mode
        return {**sizes, "groups": self.groups, "keep": bool(recording.get())}

    def extra_repr(self) -> str:
        shown = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
        shown += f"stride={self.stride}"
        for name, usual in _USUAL.items():
            value = getattr(self, name, usual)
            if value != usual and value != (usual,) * len(self.kernel_size):
                shown += f", {name}={value}"
        return shown + (", bias=False" if self.bias is None else "")


_USUAL = {"padding": 0, "padding_mode": "zeros", "output_padding": 0, "dilation": 1, "groups": 1}
"""The defaults of options that `repr` shows only if they differ."""


class Conv2d(_Convolution):
    """Convolution of images (N, C, H, W); the weight is (out, in / groups, kh, kw).

    Each size is an integer, or a tuple for rows and columns. `padding` may be "same" or "valid",
    and `padding_mode` "reflect", "replicate" or "circular", which pad with the image's own pixels.
    """

    axes, op, algorithms = 2, staticmethod(conv.conv2d), CONVOLUTIONS

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        """Computes the convolution, with ReLU and a 2x2 max-pool in the same op if asked."""
        options = self.options()
        return apply(self.op, x, self.weight, self.bias, relu=relu, pool=pool, **options)

    def options(self) -> dict[str, Any]:
        return super().options() | {"algorithm": self.algorithm}


class Conv1d(_Convolution):
    """Convolution of sequences (N, C, L); the weight is (out, in / groups, k).

    `padding` may be "same" or "valid"; `padding_mode` as in Conv2d.
    """

    axes, op = 1, staticmethod(conv.conv1d)


class ConvTranspose2d(_Convolution):
    """Transposed convolution of images (N, C, H, W); the weight is (in, out / groups, kh, kw).

    It computes what Conv2d computes as the gradient of its input, so a stride enlarges the image.
    `output_padding` adds rows and columns to the output: with a stride, Conv2d maps several image
    sizes to one, and this option chooses among them.
    """

    axes, op, is_transposed = 2, staticmethod(conv.conv_transpose2d), True

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
        padding_mode: str = "zeros",
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation
        super().__init__(*sizes, groups, bias, padding_mode)
        self.output_padding = each_axis("ConvTranspose2d", 2, 0, output_padding=output_padding)
        limits = zip(self.output_padding, self.stride, self.dilation, strict=True)
        if any(extra >= max(s, d) for extra, s, d in limits):
            raise ValueError(
                f"ConvTranspose2d: output_padding={output_padding} must be less than the stride "
                f"{self.stride} or the dilation {self.dilation}"
            )

    def options(self) -> dict[str, Any]:
        options = super().options() | {"output_padding": self.output_padding}
        del options["keep"]  # its backward pass needs only its arguments
        return options

"""Pooling over windows or over a number of parts, and upsampling."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from nnmpi.arrays.kernels import Result
from nnmpi.arrays.kernels.window import Size, pair
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops import pool
from nnmpi.autograd.ops.resample import upsample2d
from nnmpi.nn.layers.basic import each_axis
from nnmpi.nn.module import Module


class _Pool(Module):
    """The base of pooling layers: windows along the last `axes` axes."""

    axes: ClassVar[int]
    op: ClassVar[Callable[..., Result]]

    def __init__(
        self, kernel_size: Size, stride: Size | None, padding: Size, ceil_mode: bool
    ) -> None:
        self.kernel_size = self._size(1, kernel_size=kernel_size)
        self.stride = self._size(1, stride=kernel_size if stride is None else stride)
        self.padding, self.ceil_mode = self._size(0, padding=padding), ceil_mode

    def _size(self, least: int, **size: Size) -> Size:
        """Returns the single option, such as stride=2, which must be at least `least`: an integer
        if windows have one axis, else the integer or tuple that was given."""
        sizes = each_axis(type(self).__name__, self.axes, least, **size)
        return sizes[0] if self.axes == 1 else next(iter(size.values()))

    def _pooled(self, op: Callable[..., Result], x: Tensor, **options: Any) -> Tensor:
        options |= {"kernel": self.kernel_size, "stride": self.stride, "padding": self.padding}
        return apply(op, as_tensor(x), axes=self.axes, ceil_mode=self.ceil_mode, **options)

    def extra_repr(self) -> str:
        ceil_mode = ", ceil_mode=True" if self.ceil_mode else ""
        return f"{self.kernel_size}, stride={self.stride}, padding={self.padding}{ceil_mode}"


class _MaxPool(_Pool):
    op = staticmethod(pool.max_pool)

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode)
        self.dilation, self.return_indices = self._size(1, dilation=dilation), return_indices

    def forward(self, x: Tensor) -> Any:
        """Returns the maxima; with `return_indices` also their indices in image or sequence."""
        y = self._pooled(self.op, x, dilation=self.dilation)
        if not self.return_indices:
            return y
        return y, self._pooled(pool.max_pool_indices, x, dilation=self.dilation)


class _AvgPool(_Pool):
    op = staticmethod(pool.avg_pool)

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode)
        self.count_include_pad = count_include_pad

    def forward(self, x: Tensor) -> Tensor:
        return self._pooled(self.op, x, count_include_pad=self.count_include_pad)

    def extra_repr(self) -> str:
        counts = "" if self.count_include_pad else ", count_include_pad=False"
        return super().extra_repr() + counts


class MaxPool1d(_MaxPool):
    """The maximum of each window of sequences (N, C, L); options as in MaxPool2d."""

    axes = 1


class AvgPool1d(_AvgPool):
    """The mean of each window of sequences (N, C, L); options as in AvgPool2d."""

    axes = 1


class MaxPool2d(_MaxPool):
    """The maximum of each window of images (N, C, H, W).

    `ceil_mode`: a window that begins in the image or its padding counts, even if it ends outside.
    """

    axes = 2

    @property
    def is_2x2(self) -> bool:
        """True for adjacent 2x2 windows: a convolution before it can pool in the same op."""
        return has_2x2_windows(vars(self))


def has_2x2_windows(settings: Mapping[str, Any]) -> bool:
    """True if a MaxPool2d with these attributes has adjacent 2x2 windows and no other options."""
    names = ("kernel_size", "stride", "padding", "dilation")
    sizes = [pair(settings[name]) for name in names]
    plain = not (settings["ceil_mode"] or settings["return_indices"])
    return sizes == [(2, 2), (2, 2), (0, 0), (1, 1)] and plain


class AvgPool2d(_AvgPool):
    """The mean of each window of images (N, C, H, W).

    Zeros of padding count, unless `count_include_pad` is False. `ceil_mode` as in MaxPool2d.
    """

    axes = 2


class AdaptiveAvgPool2d(Module):
    """Divides images of any size into a grid of `output_size` parts, and returns the mean of each:
    an integer or (rows, columns), of which None keeps the size of the image along that axis."""

    def __init__(self, output_size: int | Sequence[int | None] | None) -> None:
        given = output_size if isinstance(output_size, Sequence) else (output_size, output_size)
        each_axis("AdaptiveAvgPool2d", 2, 1, output_size=[1 if n is None else n for n in given])
        self.output_size = tuple(given)

    def forward(self, x: Tensor) -> Tensor:
        return apply(pool.adaptive_avg_pool2d, as_tensor(x), size=self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


MODES = ("nearest", "nearest-exact", "bilinear")


class Upsample(Module):
    """Resizes images (N, C, H, W) to `size`, or multiplies their rows and columns by
    `scale_factor`. One of the two is given, as a pair (rows, columns) or as one number for both.

    mode                    "nearest" or "nearest-exact", which copy pixels, or "bilinear", which
                            interpolates between them
    align_corners           only for "bilinear": True if the centres of the corner pixels of input
                            and output are the same points
    recompute_scale_factor  True: positions follow from the ratio of the sizes of input and output,
                            which are whole numbers; False: from `scale_factor`
    """

    def __init__(
        self,
        size: Size | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        if mode not in MODES or (mode != "bilinear" and align_corners is not None):
            raise ValueError(
                f"Upsample: mode={mode!r}, align_corners={align_corners}: mode is one of "
                f"{', '.join(MODES)}, and only bilinear has align_corners"
            )
        given: Any = scale_factor
        if given is not None and not isinstance(given, Sequence):
            given = (given, given)
        is_factor = given is not None and len(given) == 2 and all(0 < f < math.inf for f in given)
        if (size is None) == (given is None) or (size is None and not is_factor):
            raise ValueError(
                f"Upsample: size={size}, scale_factor={scale_factor}: give one of the two, as a "
                "number above 0 or (rows, columns)"
            )
        self.size: Any = None if size is None else each_axis("Upsample", 2, 1, size=size)
        self.scale_factor: Any = None if given is None else tuple(given)
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        return apply(
            upsample2d,
            as_tensor(x),
            size=self.size,
            scales=self.scale_factor,
            mode=self.mode,
            align_corners=bool(self.align_corners),
            recompute_scale_factor=bool(self.recompute_scale_factor),
        )

    def extra_repr(self) -> str:
        which = "size" if self.size else "scale_factor"
        value: Any = getattr(self, which)
        if not self.size and value[0] == value[1]:
            value = float(value[0])
        return f"{which}={value}, mode={self.mode!r}"

"""PyTorch's padding layers, and layers that rearrange channels as pixels or split an axis."""

from collections.abc import Sequence
from typing import ClassVar

from nnmpi.addons.torchlike.functions.rearranging import unflatten
from nnmpi.autograd import Tensor, as_tensor
from nnmpi.autograd.functional import pad
from nnmpi.nn.layers.basic import check_sizes
from nnmpi.nn.module import Module


class _Pad(Module):
    """The base class of padding layers: `padding` is one width for all sides, (left, right) for
    sequences, or (left, right, top, bottom) for images. Negative widths remove elements."""

    axes: ClassVar[int]
    mode: ClassVar[str] = "constant"

    def __init__(self, padding: int | Sequence[int]) -> None:
        widths = [padding] * (2 * self.axes) if isinstance(padding, int) else [*padding]
        if len(widths) != 2 * self.axes or not all(isinstance(w, int) for w in widths):
            raise ValueError(
                f"{type(self).__name__}: padding={padding}: give one integer, or {2 * self.axes}: "
                f"{'(left, right)' if self.axes == 1 else '(left, right, top, bottom)'}"
            )
        self.padding = tuple(widths)

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        if x.ndim not in (self.axes + 1, self.axes + 2):
            form = "(N, C, L) or (C, L)" if self.axes == 1 else "(N, C, H, W) or (C, H, W)"
            raise ValueError(f"{type(self).__name__}: input of shape {x.shape}; it must be {form}")
        return pad(x, self.padding, self.mode, self._value())

    def _value(self) -> float | None:
        """Returns the value of new elements, or None if they repeat other elements."""
        return None

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ReflectionPad1d(_Pad):
    """Adds elements to sequences, mirrored at the first and the last one."""

    axes, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """Adds pixels to images, mirrored at the first and the last ones."""

    axes, mode = 2, "reflect"


class ReplicationPad1d(_Pad):
    """Repeats the first and the last element of sequences."""

    axes, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """Repeats the first and the last pixels of images."""

    axes, mode = 2, "replicate"


class CircularPad1d(_Pad):
    """Adds elements to both ends of sequences, copied from the opposite end."""

    axes, mode = 1, "circular"


class CircularPad2d(_Pad):
    """Adds pixels to all sides of images, copied from the opposite side."""

    axes, mode = 2, "circular"


class _ConstantPad(_Pad):
    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value

    def _value(self) -> float:
        return self.value

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ConstantPad1d(_ConstantPad):
    """Adds elements with one value to sequences."""

    axes = 1


class ConstantPad2d(_ConstantPad):
    """Adds pixels with one value to images."""

    axes = 2


class ZeroPad1d(_Pad):
    """Adds zeros to sequences."""

    axes = 1


class ZeroPad2d(_Pad):
    """Adds zeros to images."""

    axes = 2


class PixelShuffle(Module):
    """Images (..., C r r, H, W) to (..., C, H r, W r): r r channels become r x r pixels."""

    def __init__(self, upscale_factor: int) -> None:
        check_sizes("PixelShuffle", 1, upscale_factor=upscale_factor)
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        x, r = as_tensor(x), self.upscale_factor
        if x.ndim < 3 or x.shape[-3] % r**2:
            raise ValueError(
                f"PixelShuffle: input of shape {x.shape}; it must be (..., C, H, W), with C a "
                f"multiple of {r**2}"
            )
        *rest, C, H, W = x.shape
        y = x.reshape(*rest, C // r**2, r, r, H, W)
        return _reordered(y, (0, 3, 1, 4, 2)).reshape(*rest, C // r**2, H * r, W * r)

    def extra_repr(self) -> str:
        return f"upscale_factor={self.upscale_factor}"


class PixelUnshuffle(Module):
    """Images (..., C, H r, W r) to (..., C r r, H, W): r x r pixels become r r channels."""

    def __init__(self, downscale_factor: int) -> None:
        check_sizes("PixelUnshuffle", 1, downscale_factor=downscale_factor)
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        x, r = as_tensor(x), self.downscale_factor
        if x.ndim < 3 or x.shape[-2] % r or x.shape[-1] % r:
            raise ValueError(
                f"PixelUnshuffle: input of shape {x.shape}; it must be (..., C, H, W), with H and "
                f"W multiples of {r}"
            )
        *rest, C, H, W = x.shape
        y = x.reshape(*rest, C, H // r, r, W // r, r)
        return _reordered(y, (0, 2, 4, 1, 3)).reshape(*rest, C * r**2, H // r, W // r)

    def extra_repr(self) -> str:
        return f"downscale_factor={self.downscale_factor}"


class Unflatten(Module):
    """Divides the axis `dim` into several with the given lengths, of which one may be -1."""

    def __init__(self, dim: int, unflattened_size: Sequence[int]) -> None:
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, x: Tensor) -> Tensor:
        return unflatten(x, self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"


def _reordered(x: Tensor, order: tuple[int, ...]) -> Tensor:
    """Returns the tensor with its last axes in another order."""
    first = x.ndim - len(order)
    return x.permute(*range(first), *(first + i for i in order))

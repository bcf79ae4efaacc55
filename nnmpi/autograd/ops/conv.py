"""Convolution and pooling of images (N, C, H, W), channels last in memory."""

from collections.abc import Sequence
from typing import Any

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import conv
from nnmpi.kernels.im2col import output_size
from nnmpi.kernels.pool import max_pool2d as max_pool_kernel
from nnmpi.kernels.pool import shifts
from nnmpi.kernels.result import Result


def conv2d(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    stride: int = 1,
    padding: int = 0,
    relu: bool = False,
    pool: bool = False,
    algorithm: str = "auto",
    keep: bool = True,
) -> Result:
    """x (N, C, H, W) by kernels w (O, C, kh, kw), + b (O), then optional 2x2 max-pool and ReLU."""
    check_conv2d(x.shape, x.dtype, w, stride, padding, pool)
    return conv.conv2d(x, w, b, conv.Shape(stride, padding, relu, pool, algorithm, keep))


def check_conv2d(
    shape: Sequence[int], dtype: Any, w: Array, stride: int, padding: int, pool: bool
) -> None:
    """Raises ValueError unless images (N, C, H, W) of this shape can be convolved with w."""
    if len(shape) != 4 or shape[1] != w.shape[1]:
        raise ValueError(
            f"conv2d: input of shape {shape} for a weight of shape {w.shape}: "
            f"the input must be (N, {w.shape[1]}, H, W)"
        )
    if dtype != w.dtype:
        raise ValueError(
            f"conv2d: {dtype} input for {w.dtype} weights: nnmpi.tensor(x, dtype='{w.dtype}')"
        )
    size = min(
        output_size(n, k, stride, padding) for n, k in zip(shape[2:], w.shape[2:], strict=True)
    )
    if size < (2 if pool else 1):
        raise ValueError(
            f"conv2d: images of {shape[2]}x{shape[3]} with padding {padding} are too small "
            f"for a {w.shape[2]}x{w.shape[3]} kernel{' and a 2x2 pool' if pool else ''}"
        )


def check_window(name: str, shape: Sequence[int], kernel: int, padding: int) -> None:
    """Raises ValueError unless images (N, C, H, W) of this shape can be pooled."""
    if len(shape) != 4 or min(shape[2:]) + 2 * padding < kernel:
        raise ValueError(f"{name}: input of shape {shape} for a {kernel}x{kernel} window")
    if 2 * padding > kernel:
        raise ValueError(f"{name}: padding {padding} is more than half the window {kernel}")


def max_pool2d(x: Array, *, kernel: int, stride: int, padding: int = 0) -> Result:
    """The maximum of each window."""
    check_window("max_pool2d", x.shape, kernel, padding)
    return max_pool_kernel(x, kernel=kernel, stride=stride, padding=padding)


def avg_pool2d(x: Array, *, kernel: int, stride: int, padding: int = 0) -> Result:
    """The mean of each window, padding zeros included, as in PyTorch."""
    check_window("avg_pool2d", x.shape, kernel, padding)
    xp, p = xp_of(x), padding
    n, C, H, W = x.shape
    padded = xp.zeros((n, H + 2 * p, W + 2 * p, C), x.dtype)
    padded[:, p : p + H, p : p + W] = x.transpose(0, 2, 3, 1)
    h, w = (output_size(size, kernel, stride, p) for size in (H, W))
    y = xp.zeros((n, h, w, C), x.dtype)
    for view in shifts(padded, kernel, stride, h, w):
        y += view
    y *= 1 / kernel**2

    def vjp(g: Array, out: Array | None) -> Array:
        part = g.transpose(0, 2, 3, 1) * (1 / kernel**2)
        d = xp.zeros_like(padded)
        for view in shifts(d, kernel, stride, h, w):
            view += part
        return d[:, p : p + H, p : p + W].transpose(0, 3, 1, 2)

    return Result(y.transpose(0, 3, 1, 2), (vjp,))

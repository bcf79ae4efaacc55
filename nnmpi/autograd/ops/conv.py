"""Convolution and pooling of images (N, C, H, W), channels last in memory."""

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
    if x.ndim != 4 or x.shape[1] != w.shape[1]:
        raise ValueError(
            f"conv2d: input of shape {x.shape} for a weight of shape {w.shape}: "
            f"the input must be (N, {w.shape[1]}, H, W)"
        )
    if x.dtype != w.dtype:
        raise ValueError(
            f"conv2d: {x.dtype} input for {w.dtype} weights: nnmpi.tensor(x, dtype='{w.dtype}')"
        )
    size = min(
        output_size(n, k, stride, padding) for n, k in zip(x.shape[2:], w.shape[2:], strict=True)
    )
    if size < (2 if pool else 1):
        raise ValueError(
            f"conv2d: images of {x.shape[2]}x{x.shape[3]} with padding {padding} are too small "
            f"for a {w.shape[2]}x{w.shape[3]} kernel{' and a 2x2 pool' if pool else ''}"
        )
    return conv.conv2d(x, w, b, conv.Shape(stride, padding, relu, pool, algorithm, keep))


def _check_window(name: str, x: Array, kernel: int, stride: int, padding: int) -> None:
    if x.ndim != 4 or min(x.shape[2:]) + 2 * padding < kernel:
        raise ValueError(f"{name}: input of shape {x.shape} for a {kernel}x{kernel} window")
    if 2 * padding > kernel:
        raise ValueError(f"{name}: padding {padding} is more than half the window {kernel}")


def max_pool2d(x: Array, *, kernel: int, stride: int, padding: int = 0) -> Result:
    """The maximum of each window."""
    _check_window("max_pool2d", x, kernel, stride, padding)
    return max_pool_kernel(x, kernel=kernel, stride=stride, padding=padding)


def avg_pool2d(x: Array, *, kernel: int, stride: int, padding: int = 0) -> Result:
    """The mean of each window, padding zeros included, as in PyTorch."""
    _check_window("avg_pool2d", x, kernel, stride, padding)
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

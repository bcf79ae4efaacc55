"""Max-pooling with any window, as the running maximum of shifted views."""

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import epilogue
from nnmpi.kernels.im2col import output_size
from nnmpi.kernels.result import Result


def shifts(x: Array, kernel: int, stride: int, h: int, w: int) -> list[Array]:
    """The kernel*kernel views (N, h, w, C) of x (N, H, W, C), one per element of the window."""
    return [
        x[:, i : i + stride * (h - 1) + 1 : stride, j : j + stride * (w - 1) + 1 : stride]
        for i in range(kernel)
        for j in range(kernel)
    ]


def max_pool2d(x: Array, *, kernel: int, stride: int, padding: int) -> Result:
    """The maximum of each window of x (N, C, H, W); channels-last memory in and out."""
    xl = x.transpose(0, 2, 3, 1)
    if (kernel, stride, padding) == (2, 2, 0):
        return _max_pool_2x2(xl)
    xp = xp_of(x)
    n, H, W, C = xl.shape
    p = padding
    padded = xp.full((n, H + 2 * p, W + 2 * p, C), -xp.inf, x.dtype)
    padded[:, p : p + H, p : p + W] = xl
    h, w = output_size(H, kernel, stride, p), output_size(W, kernel, stride, p)
    views = shifts(padded, kernel, stride, h, w)
    y = views[0].copy()
    for view in views[1:]:
        xp.maximum(y, view, out=y)

    def vjp(g: Array, out: Array | None) -> Array:
        rest = xp.ascontiguousarray(g.transpose(0, 2, 3, 1))
        d = xp.zeros_like(padded)
        for view, dview in zip(views, shifts(d, kernel, stride, h, w), strict=True):
            part = rest * (view == y)
            dview += part
            rest = rest - part
        return d[:, p : p + H, p : p + W].transpose(0, 3, 1, 2)

    return Result(y.transpose(0, 3, 1, 2), (vjp,))


def _max_pool_2x2(x: Array) -> Result:
    """2x2 windows with stride 2 of x (N, H, W, C): the same kernel as in a fused convolution."""
    xp = xp_of(x)
    n, H, W, C = x.shape
    h, w = H // 2, W // 2

    def windows(a: Array) -> Array:
        return a[:, : 2 * h, : 2 * w].reshape(n, h, 2, w, 2, C).transpose(2, 4, 0, 1, 3, 5)

    y = xp.empty((n, h, w, C), x.dtype)
    masks = epilogue.pool_windows(windows(x), y)

    def vjp(g: Array, out: Array | None) -> Array:
        d = xp.zeros(x.shape, x.dtype)
        epilogue.unpool_windows(g.transpose(0, 2, 3, 1), masks, windows(d))
        return d.transpose(0, 3, 1, 2)

    return Result(y.transpose(0, 3, 1, 2), (vjp,))

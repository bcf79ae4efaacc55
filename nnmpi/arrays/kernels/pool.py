"""Pooling with any window, as the running maximum or sum of shifted views, channels last."""

from functools import reduce
from typing import Any

import numpy as np

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result, epilogue
from nnmpi.arrays.kernels.linear import matmul
from nnmpi.arrays.kernels.precision import by_float32, widened
from nnmpi.arrays.kernels.window import Window, Windows

_2X2 = (Window(2, 2), Window(2, 2))


def _padded(
    xp: Any, shape: tuple[int, ...], value: float, dtype: Any, w: Windows
) -> tuple[Array, list[Array]]:
    """Makes padded images (N, H, W, C) filled with `value`. Returns a view without the padding, and
    for each element of the window a view (N, h, w, C): that element in all windows."""
    (n, H, W, C), (rows, columns) = shape, w
    padded = xp.full((n, rows.padded(H), columns.padded(W), C), value, dtype)
    down, right = rows.stride * rows.outputs(H), columns.stride * columns.outputs(W)
    views = [
        padded[:, i : i + down : rows.stride, j : j + right : columns.stride]
        for i in range(0, rows.span, rows.dilation)
        for j in range(0, columns.span, columns.dilation)
    ]
    inside = padded[:, rows.before : rows.before + H, columns.before : columns.before + W]
    return inside, views


def max_pool2d(x: Array, windows: Windows) -> Result:
    """The maximum of each window of x (N, C, H, W), channels-last in memory."""
    xl, xp = x.transpose(0, 2, 3, 1), xp_of(x)
    if windows == _2X2:
        return _max_pool_2x2(xl)
    lowest = -xp.inf if is_float(x.dtype) else xp.iinfo(x.dtype).min

    def views_of(images: Array) -> list[Array]:
        inside, views = _padded(xp, images.shape, lowest, images.dtype, windows)
        inside[...] = images
        return views

    def largest(images: Array) -> Array:
        first, *others = views_of(images)
        return reduce(lambda y, view: xp.maximum(y, view, out=y), others, first.copy())

    def spread(g: Array, images: Array, y: Array) -> Array:
        rest = xp.ascontiguousarray(g)
        dx, dviews = _padded(xp, images.shape, 0, g.dtype, windows)
        for view, dview in zip(views_of(images), dviews, strict=True):
            part = rest * (view == y)
            dview += part
            rest = rest - part  # only the first of equal maxima gets the gradient
        return dx

    y = by_float32(largest, xl)

    def vjp(g: Array, out: Array | None) -> Array:
        return by_float32(spread, g.transpose(0, 2, 3, 1), xl, y).transpose(0, 3, 1, 2)

    return Result(y.transpose(0, 3, 1, 2), (vjp,))


def max_pool2d_indices(x: Array, windows: Windows) -> Array:
    """The place of each window's first maximum in x (N, C, H, W), as row * W + column."""
    y, xl = (a.transpose(0, 2, 3, 1) for a in (max_pool2d(x, windows).value, x))
    xp, (H, W) = xp_of(x), x.shape[2:]
    inside, views = _padded(xp, xl.shape, 0, x.dtype, windows)
    inside[...] = xl
    pixels, places = _padded(xp, (1, H, W, 1), -1, "int64", windows)
    pixels[...] = xp.arange(H * W).reshape(1, H, W, 1)
    indices = xp.zeros(y.shape, "int64")  # filled backwards, so that the first maximum stays
    for view, place in zip(reversed(views), reversed(places), strict=True):
        indices = xp.where((view == y) & (place >= 0), place, indices)
    return indices.transpose(0, 3, 1, 2)


def _max_pool_2x2(x: Array) -> Result:
    """Pools 2x2 windows with stride 2 of x (N, H, W, C), by the pooling kernel of convolutions."""
    xp, shape, dtype = xp_of(x), x.shape, x.dtype
    n, H, W, C = shape
    h, w = H // 2, W // 2

    def windows(a: Array) -> Array:
        return a[:, : 2 * h, : 2 * w].reshape(n, h, 2, w, 2, C).transpose(2, 4, 0, 1, 3, 5)

    y = xp.empty((n, h, w, C), dtype)
    largest = epilogue.empty_places(y)
    epilogue.pool_loop(windows(x), y, largest)

    def vjp(g: Array, out: Array | None) -> Array:
        d = (xp.zeros if H % 2 or W % 2 else xp.empty)(shape, dtype)
        epilogue.unpool_loop(g.transpose(0, 2, 3, 1), largest, windows(d))
        return d.transpose(0, 3, 1, 2)

    return Result(y.transpose(0, 3, 1, 2), (vjp,))


@widened
def avg_pool2d(x: Array, windows: Windows, count_include_pad: bool) -> Result:
    """Computes the mean of each window of x (N, C, H, W). The divisor is the number of pixels in
    the window, with `count_include_pad` including padding."""
    xl, xp = x.transpose(0, 2, 3, 1), xp_of(x)
    shape = xl.shape
    shares = _shares(x, windows, count_include_pad)
    inside, views = _padded(xp, shape, 0, x.dtype, windows)
    inside[...] = xl
    y = views[0].copy()
    for view in views[1:]:
        y += view
    y *= shares

    def vjp(g: Array, out: Array | None) -> Array:
        part = g.transpose(0, 2, 3, 1) * shares
        dx, dviews = _padded(xp, shape, 0, g.dtype, windows)
        for dview in dviews:
            dview += part
        return dx.transpose(0, 3, 1, 2)

    return Result(y.transpose(0, 3, 1, 2), (vjp,))


def _shares(x: Array, windows: Windows, count_include_pad: bool) -> Array | float:
    """Returns the factor of each window in average pooling, 1 / (number of pixels in the mean), as
    (h, w, 1), or one number if all are equal. Padding counts if `count_include_pad`."""
    rows, columns = (
        _counts(window, size, count_include_pad)
        for window, size in zip(windows, x.shape[2:], strict=True)
    )
    counts = np.outer(rows, columns)
    if (counts == counts[0, 0]).all():
        return 1 / float(counts[0, 0])
    return epilogue.copied((1 / counts)[..., None], x.dtype, x)


def _counts(window: Window, size: int, count_include_pad: bool) -> np.ndarray:
    """Returns how many of `size` inputs along an axis each mean is over. Padding counts if
    `count_include_pad`; positions beyond the padding never count."""
    padding = window.before
    start = np.arange(window.outputs(size)) * window.stride - padding
    stop = np.minimum(start + window.kernel, size + padding)
    return stop - start if count_include_pad else np.minimum(stop, size) - np.maximum(start, 0)


@widened
def adaptive_avg_pool2d(x: Array, size: tuple[int, int]) -> Result:
    """Computes the means of `size` blocks (rows, columns) of each image of x (N, C, H, W), as
    products with matrices that average rows and columns; blocks overlap where `size` does not
    divide the image. For a single block there is one product: all pixels are rows then.

    Block i of o has the rows from floor(i * H / o) to ceil((i + 1) * H / o), and columns likewise.
    """
    xl = x.transpose(0, 2, 3, 1)
    n, *image, C = xl.shape
    H, W = (image[0] * image[1], 1) if size == (1, 1) else image
    rows, columns = (
        epilogue.copied(_parts(length, parts), x.dtype, x)
        for length, parts in zip((H, W), size, strict=True)
    )
    y = matmul(rows, xl.reshape(n, H, W * C)).reshape(n * size[0], W, C)
    if size[1] != W:
        y = matmul(columns, y)

    def vjp(g: Array, out: Array | None) -> Array:
        d = g.transpose(0, 2, 3, 1).reshape(n * size[0], size[1], C)
        if size[1] != W:
            d = matmul(columns.T, d)
        d = matmul(rows.T, d.reshape(n, size[0], W * C))
        return d.reshape(n, *image, C).transpose(0, 3, 1, 2)

    return Result(y.reshape(n, *size, C).transpose(0, 3, 1, 2), (vjp,))


def _parts(length: int, parts: int) -> np.ndarray:
    """Returns the matrix (parts, length) whose row i averages elements floor(i * length / parts) to
    ceil((i + 1) * length / parts) - 1 of a vector."""
    i, k = np.arange(parts)[:, None], np.arange(length)
    mine = (k >= i * length // parts) & (k < -(-(i + 1) * length // parts))
    shares: np.ndarray = mine / mine.sum(axis=1, keepdims=True)
    return shares

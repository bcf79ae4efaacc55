"""Pooling of images (N, C, H, W), which are channels-last in memory, and of sequences (N, C, L)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from nnmpi.arrays.backend import Array
from nnmpi.arrays.dtypes import is_float
from nnmpi.arrays.kernels import Result, pool
from nnmpi.arrays.kernels.window import Size, Window, Windows, windows


def check_window(name: str, shape: Sequence[int], w: Sequence[Window]) -> None:
    """Raises ValueError unless images (N, C, H, W) or sequences (N, C, L) of this shape can be
    pooled by `w`, the window of each axis after C."""
    kernel = "x".join(str(window.kernel) for window in w)
    inputs, axes = ("images", "H, W") if len(w) == 2 else ("sequences", "L")
    if len(shape) != 2 + len(w):
        raise ValueError(
            f"{name}: input of shape {shape} for a {kernel} window: the input must be "
            f"(N, C, {axes})"
        )
    sizes = shape[2:]
    for window in w:
        if 2 * window.before > window.kernel:
            raise ValueError(
                f"{name}: padding {window.before} is more than half the window {window.kernel}"
            )
    if 0 in sizes or min(v.outputs(size) for v, size in zip(w, sizes, strict=True)) < 1:
        raise ValueError(
            f"{name}: input of shape {shape} for a {kernel} window: {inputs} of "
            f"{'x'.join(map(str, sizes))} are too small; make the window smaller, or the "
            "padding larger"
        )


def _pooled(
    name: str,
    kernel: Callable[[Array, Windows], Result],
    x: Array,
    axes: int,
    ceil_mode: bool,
    sizes: Mapping[str, Size],
) -> Result:
    """Pools x along its last one or two axes by `kernel`; sequences (N, C, L) are images of one
    row. With `ceil_mode` a last window may end beyond the input."""
    w: Sequence[Window] = windows(**sizes)[-axes:]
    if ceil_mode and x.ndim == 2 + axes:
        w = [window.ceiled(size) for window, size in zip(w, x.shape[2:], strict=True)]
    check_window(name, x.shape, w)
    if axes == 2:
        return kernel(x, (w[0], w[1]))
    result = kernel(x[:, :, None], (Window(1), w[0]))
    vjps = (lambda g, out, vjp=v: vjp(g[:, :, None], None)[:, :, 0] for v in result.vjps)
    return Result(result.value[:, :, 0], tuple(vjps))


def max_pool(x: Array, *, axes: int = 2, ceil_mode: bool = False, **sizes: Size) -> Result:
    """The maximum of each window along the last `axes` axes: 2 for images, 1 for sequences. With
    `ceil_mode` a last window may end beyond the input."""
    return _pooled(f"max_pool{axes}d", pool.max_pool2d, x, axes, ceil_mode, sizes)


def max_pool_indices(x: Array, *, axes: int = 2, ceil_mode: bool = False, **sizes: Size) -> Result:
    """The index of the maximum of each window of `max_pool`: row * W + column in an image, or the
    position in a sequence."""
    return _pooled(f"max_pool{axes}d", _indices, x, axes, ceil_mode, sizes)


def _indices(x: Array, w: Windows) -> Result:
    return Result(pool.max_pool2d_indices(x, w), ())


def avg_pool(
    x: Array,
    *,
    axes: int = 2,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    **sizes: Size,
) -> Result:
    """The mean of each window along the last `axes` axes; padding counts by `count_include_pad`."""
    name, kernel = f"avg_pool{axes}d", partial(pool.avg_pool2d, count_include_pad=count_include_pad)
    _check_floats(name, x)
    return _pooled(name, kernel, x, axes, ceil_mode, sizes)


def adaptive_avg_pool2d(x: Array, *, size: tuple[int | None, int | None]) -> Result:
    """Average pooling of images to `size` (rows, columns); None keeps the size of an axis."""
    _check_floats("adaptive_avg_pool2d", x)
    if x.ndim != 4 or 0 in x.shape[2:]:
        raise ValueError(
            f"adaptive_avg_pool2d: input of shape {x.shape}: the input must be (N, C, H, W) with "
            "H and W of at least 1"
        )
    rows, columns = (
        length if parts is None else parts for length, parts in zip(x.shape[2:], size, strict=True)
    )
    return pool.adaptive_avg_pool2d(x, (rows, columns))


def _check_floats(name: str, x: Array) -> None:
    if not is_float(x.dtype):
        raise ValueError(
            f"{name} takes floating-point numbers, not {x.dtype}: write x.astype('float32')"
        )

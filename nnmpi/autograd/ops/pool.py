"""Pooling of images (N, C, H, W), channels last in memory, and of sequences (N, C, L)."""

from collections.abc import Sequence

from nnmpi.backend import Array
from nnmpi.kernels import Result, pool
from nnmpi.kernels.window import Size, Window, Windows, windows

ONE_ROW = Window(1)
"""Sequences are pooled as images of one row."""


def check_window(name: str, shape: Sequence[int], w: Sequence[Window]) -> None:
    """Raises ValueError unless images (N, C, H, W) or sequences (N, C, L) can be pooled.

    `w` has the windows of all axes behind C.
    """
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


def _windows(
    name: str, x: Array, kernel: Size, stride: Size, padding: Size, dilation: Size, ceil_mode: bool
) -> Windows:
    w = windows(kernel, stride, padding, dilation)
    if ceil_mode and x.ndim == 4:
        w = w[0].ceiled(x.shape[2]), w[1].ceiled(x.shape[3])
    check_window(name, x.shape, w)
    return w


def _window(
    name: str, x: Array, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> Windows:
    w = Window(kernel, stride, padding, padding, dilation)
    if ceil_mode and x.ndim == 3:
        w = w.ceiled(x.shape[2])
    check_window(name, x.shape, (w,))
    return ONE_ROW, w


def _of_one_row(r: Result) -> Result:
    """The op on (N, C, L), from that on (N, C, 1, L)."""
    (vjp,) = r.vjps
    return Result(r.value[:, :, 0], (lambda g, out: vjp(g[:, :, None], None)[:, :, 0],))


def max_pool2d(
    x: Array,
    *,
    kernel: Size,
    stride: Size,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
) -> Result:
    """The maximum of each window."""
    w = _windows("max_pool2d", x, kernel, stride, padding, dilation, ceil_mode)
    return pool.max_pool2d(x, w)


def max_pool1d(
    x: Array,
    *,
    kernel: int,
    stride: int,
    padding: int = 0,
    dilation: int = 1,
    ceil_mode: bool = False,
) -> Result:
    """The maximum of each window of sequences (N, C, L)."""
    w = _window("max_pool1d", x, kernel, stride, padding, dilation, ceil_mode)
    return _of_one_row(pool.max_pool2d(x[:, :, None], w))


def avg_pool2d(
    x: Array,
    *,
    kernel: Size,
    stride: Size,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Result:
    """The mean of each window, with the zeros of the padding or without them."""
    _check_floats("avg_pool2d", x)
    w = _windows("avg_pool2d", x, kernel, stride, padding, 1, ceil_mode)
    return pool.avg_pool2d(x, w, count_include_pad)


def avg_pool1d(
    x: Array,
    *,
    kernel: int,
    stride: int,
    padding: int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Result:
    """The mean of each window of sequences (N, C, L), with the zeros of the padding or without."""
    _check_floats("avg_pool1d", x)
    w = _window("avg_pool1d", x, kernel, stride, padding, 1, ceil_mode)
    return _of_one_row(pool.avg_pool2d(x[:, :, None], w, count_include_pad))


def adaptive_avg_pool2d(x: Array, *, size: tuple[int | None, int | None]) -> Result:
    """The means of as many parts as `size` says; of None, as many as pixels."""
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
    if x.dtype.kind != "f":
        raise ValueError(
            f"{name}: {x.dtype} input has no means in its own type: write x.astype('float32')"
        )

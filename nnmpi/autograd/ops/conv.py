"""Convolution of images (N, C, H, W), channels-last in memory, and sequences (N, C, L)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nnmpi.arrays.backend import Array
from nnmpi.arrays.kernels import Result, conv
from nnmpi.arrays.kernels.window import Size, Windows, pair, windows
from nnmpi.autograd.ops.linear import check_dtype, like_weight
from nnmpi.autograd.ops.resample import pad


def conv2d(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    relu: bool = False,
    pool: bool = False,
    algorithm: str = "auto",
    keep: bool = True,
) -> Result:
    """The convolution of x (N, C, H, W) with w (O, C / groups, kh, kw), plus b (O), then optionally
    2x2 max-pooling (`pool`) and ReLU (`relu`).

    `algorithm` is the option --convolution; without `keep` nothing is kept for a backward pass.
    """
    shape = conv.ConvShape(
        windows(w.shape[2:], stride, padding, dilation), groups, relu, pool, algorithm, keep
    )
    x = like_weight(x, w)
    check_conv2d(x.shape, x.dtype, w, shape)
    return conv.conv2d(x, w, b, shape)


def check_conv2d(shape: Sequence[int], dtype: Any, w: Array, f: conv.ConvShape) -> None:
    """Raises ValueError unless images (N, C, H, W) of this shape can be convolved with w."""
    _check_input("conv2d", shape, dtype, w, w.shape[1] * f.groups, "H, W")
    if min(f.outputs(*shape[2:])) < 1:
        raise ValueError(
            f"conv2d: images of {shape[2]}x{shape[3]} with padding {_padding(f.windows)} are too "
            f"small for a {_kernel(f.windows)} kernel{' and a 2x2 pool' if f.pool else ''}"
        )


def conv1d(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    stride: int = 1,
    padding: int | str = 0,
    dilation: int = 1,
    groups: int = 1,
    keep: bool = True,
) -> Result:
    """The convolution of x (N, C, L) with w (O, C / groups, k), plus b (O)."""
    x = like_weight(x, w)
    _check_input("conv1d", x.shape, x.dtype, w, w.shape[1] * groups, "L")
    along = windows((1, w.shape[2]), (1, stride), _along(padding), (1, dilation))
    if along[1].outputs(x.shape[2]) < 1:
        raise ValueError(
            f"conv1d: sequences of length {x.shape[2]} with padding {along[1].before} are too "
            f"short for a kernel of {along[1].span}"
        )
    return _on_one_row(
        conv.conv2d(x[:, :, None], w[:, :, None], b, conv.ConvShape(along, groups, keep=keep))
    )


def after_padding(
    op: Callable[..., Result],
    x: Array,
    w: Array,
    b: Array | None,
    *,
    padding_mode: str,
    padding: Any,
    dilation: Any,
    groups: int,
    **options: Any,
) -> Result:
    """Pads x with its own elements by `padding_mode`, and applies `op`, `conv1d` or `conv2d`."""
    x, is_row = like_weight(x, w), w.ndim == 3
    axes = "L" if is_row else "H, W"
    _check_input(op.__name__, x.shape, x.dtype, w, w.shape[1] * groups, axes)
    if is_row:
        around = windows((1, w.shape[2]), 1, _along(padding), (1, dilation))
    else:
        around = windows(w.shape[2:], 1, padding, dilation)
    ends = [(0, 0), (0, 0), *((window.before, window.after) for window in around[is_row:])]
    padded = pad(x, widths=ends, mode=padding_mode)
    result = op(padded.value, w, b, dilation=dilation, groups=groups, **options)
    (back,), (of_x, *others) = padded.vjps, result.vjps
    return result._replace(vjps=(lambda shared, out: back(of_x(shared, None), None), *others))


def _along(padding: int | str) -> Size | str:
    """The padding of sequences as 2-D padding (rows, columns) of images of one row."""
    return padding if isinstance(padding, str) else (0, padding)


def _on_one_row(r: Result) -> Result:
    """Turns conv2d's result on (N, C, 1, L) into that of conv1d on (N, C, L)."""
    (of_x, of_w, of_b), plain = r.vjps, r.prepare
    assert plain is not None

    def prepare(g: Array, needs: Sequence[bool]) -> Any:
        return plain(g[:, :, None], needs)

    def vjp_w(shared: Any, out: Array | None) -> Array:
        if out is None:
            return of_w(shared, None)[:, :, 0]
        of_w(shared, out[:, :, None])
        return out

    vjps = (lambda shared, out: of_x(shared, None)[:, :, 0], vjp_w, of_b)
    return Result(r.value[:, :, 0], vjps, prepare)


def conv_transpose2d(
    x: Array,
    w: Array,
    b: Array | None,
    *,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Result:
    """The transposed convolution of x (N, C, H, W) with w (C, O / groups, kh, kw), plus b (O)."""
    x = like_weight(x, w)
    _check_input("conv_transpose2d", x.shape, x.dtype, w, w.shape[0], "H, W")
    back = windows(w.shape[2:], stride, padding, dilation)
    sizes = [
        (size - 1) * window.stride - window.before - window.after + window.span + extra
        for window, size, extra in zip(back, x.shape[2:], pair(output_padding), strict=True)
    ]
    if min(sizes) < 1:
        raise ValueError(
            f"conv_transpose2d: images of {x.shape[2]}x{x.shape[3]} would become "
            f"{sizes[0]}x{sizes[1]}: padding {_padding(back)} is too large for a {_kernel(back)} "
            "kernel"
        )
    rows, columns = (
        window._replace(after=window.after - extra)
        for window, extra in zip(back, pair(output_padding), strict=True)
    )
    shape = conv.ConvShape((rows, columns), groups, algorithm="im2col")
    return conv.conv_transpose2d(x, w, b, shape, (sizes[0], sizes[1]))


def _check_input(
    name: str, shape: Sequence[int], dtype: Any, w: Array, channels: int, axes: str
) -> None:
    """Raises ValueError, which names the op and its axes, unless an input fits the weight w."""
    if len(shape) != w.ndim or shape[1] != channels:
        grey = channels == 1 and len(shape) == w.ndim - 1
        raise ValueError(
            f"{name}: input of shape {tuple(shape)} for a weight of shape {w.shape}: "
            f"the input must be (N, {channels}, {axes})"
            f"{'; x[:, None] adds the axis of channels' if grey else ''}"
        )
    check_dtype(name, dtype, w)


def _padding(f: Windows) -> str:
    """The padding of a convolution's windows as users write it: "1" or "(1, 2)"."""
    rows, columns = (window.before for window in f)
    return str(rows) if rows == columns else f"({rows}, {columns})"


def _kernel(f: Windows) -> str:
    """The kernel size of a convolution's windows for messages, as "3x3", with any dilation."""
    size = "x".join(str(window.kernel) for window in f)
    dilations = [window.dilation for window in f]
    return size if dilations == [1, 1] else f"{size} (dilation {dilations[0]}x{dilations[1]})"

"""Convolution in chunks of images, which fit in cache, by the fastest of several methods.

The epilogue (pooling, bias, ReLU) of a chunk is computed while it is in cache.

    x --method.outputs--> y = relu(pool(conv(x, w)) + b)      chunk by chunk
    dx, dw, db <--method.gradients-- g                        and backwards

`method_of` returns the first of these methods that can compute the given convolution:

    Winograd   on the host: 3x3 kernels with stride 1 (`winograd.py`, an add-on); or the method that
               another add-on has for the value of --convolution
    Cudnn      on a GPU, all images at once (`cuda/conv.py`); not with --convolution im2col
    Depthwise  one channel a group: a weighted sum of shifted images
    Direct     images with at most 4 channels, if its kernel is compiled
    Im2col     all others

Bias and ReLU commute with max-pooling: they are applied after it, to a quarter of the elements. In
16 bits the factors of products are rounded, and sums are in float32.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

from nnmpi.addons import Table
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import PlacedGradients, Result, Vjp, column_sum, epilogue, progress_hook
from nnmpi.arrays.kernels.depthwise import Depthwise
from nnmpi.arrays.kernels.epilogue import Gradients, RowConstants
from nnmpi.arrays.kernels.im2col import Direct, Im2col
from nnmpi.arrays.kernels.precision import cast, float32_on_host
from nnmpi.arrays.kernels.window import Windows
from nnmpi.arrays.native.table import device_kernels

_METHODS: "Table[Callable[[Array, Array, ConvShape], tuple[ConvMethod, int] | None]]" = Table(
    "convolutions"
)
"""By algorithm: a function that returns the method of a convolution of x by w on the host, and how
many images it takes at a time; None if it has none for these."""

CONVOLUTIONS = tuple(dict.fromkeys(("auto", *_METHODS.where, "im2col")))
"""The values of `--convolution`. If the algorithm does not apply or is slower, im2col is used; on a
GPU cuDNN, if it is installed, except for "im2col"."""


class ConvShape(NamedTuple):
    """The parameters of relu(max_pool_2x2(conv(x, w) + b)), where pool and relu are optional.

    windows    the kernel size, stride, padding and dilation along the rows and the columns
    algorithm  the option --convolution: "auto", or the name of an algorithm, such as "winograd"
    keep       True to keep what the backward pass needs
    """

    windows: Windows
    groups: int = 1
    relu: bool = False
    pool: bool = False
    algorithm: str = "auto"
    keep: bool = True

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """Returns the height and width of the result for images of this size."""
        (rows, columns), f = self.windows, 2 if self.pool else 1
        return rows.outputs(height) // f, columns.outputs(width) // f


class ConvMethod(Protocol):
    """A way to compute a convolution of x by w and its gradients, in chunks of images.

    kept      {first image of a chunk: array that the backward pass of this chunk needs}
    adds_db   True if `gradients` adds to the gradient of b, False if it overwrites it
    """

    x: Array
    kept: dict[int, Array]
    adds_db: bool

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        """Writes the outputs y (n, h, w, O) of images x[s], after pooling, bias and ReLU.

        `largest` receives the position of the maximum in each pooling window (None without
        pooling), and `rows` has the bias (see `RowConstants`).
        """

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """Computes gradients for images x[s], from the gradient g of their outputs.

        Writes shared.dx[s], and adds to shared.dw and shared.db; None for one that is not needed. y
        are the outputs (None without ReLU), and `largest` has the position of the maximum in each
        pooling window (None without pooling).
        """

    def new_dw(self) -> Array:
        """Allocates the sum of w's gradients, with axes in the method's order."""

    def finish_dw(self, dw: Array) -> Array:
        """Converts a sum of w's gradients to (kh, kw, C / groups, O)."""

    def begin_backward(self, needs_dx: bool) -> None:
        """Prepares for a backward pass, before `gradients` is first called: may transform w."""

    def release(self) -> None:
        """Frees the arrays that are not needed after a pass over all images."""


@cache
def _of_add_on(algorithm: str) -> Any:
    return _METHODS.row(algorithm)


def method_of(x: Array, w: Array, f: ConvShape) -> tuple[ConvMethod, int]:
    """Returns the ConvMethod for x (N, H, W, C) and w, and how many images it takes at a time."""
    choose = _of_add_on(f.algorithm) if of(x).is_host else None
    by_add_on: tuple[ConvMethod, int] | None = choose and choose(x, w, f)
    if by_add_on:
        return by_add_on
    by_device = device_kernels(x).convolution(x, w, f) if f.algorithm != "im2col" else None
    return im2col(x, w, f) if by_device is None else (by_device, len(x))


def im2col(x: Array, w: Array, f: ConvShape) -> tuple[Im2col, int]:
    """Returns Depthwise, Direct or Im2col, and the number of images that it takes at a time."""
    N, H, W, C = x.shape
    kh, kw, _, O = w.shape
    h, v = (window.outputs(size) for window, size in zip(f.windows, (H, W), strict=True))
    budget = of(x).chunk_bytes
    if f.groups == C > 1:
        chunk = images_per_chunk(N, (H * W * C + 2 * h * v * O) * x.itemsize, budget)
        return Depthwise(x, w, f.windows, f.pool), chunk
    chunk = images_per_chunk(N, h * v * (kh * kw * C + O) * x.itemsize, budget)
    method = Direct if Direct.suits(x, w, f.windows, f.groups) else Im2col
    return method(x, w, f.windows, f.groups, f.pool, chunk), chunk


def images_per_chunk(N: int, bytes_per_image: int, budget: int) -> int:
    """Returns how many images take at most `budget` bytes, in about equal chunks."""
    most = max(1, min(N, budget // max(bytes_per_image, 1)))
    return -(-N // -(-N // most)) if N else 1


def conv2d(x: Array, w: Array, b: Array | None, f: ConvShape) -> Result:
    """Convolves images x (N, C, H, W) by w (O, C / groups, kh, kw), plus b (O), with pooling and
    ReLU if f asks for them. Arrays have these shapes, but are channels-last in memory."""
    xl = x.transpose(0, 2, 3, 1)
    wl = xp_of(w).ascontiguousarray(w.transpose(2, 3, 1, 0))
    method, chunk = method_of(xl, wl, f)
    N, O, shape = len(x), len(w), xl.shape
    h, v = f.outputs(*x.shape[2:])
    y = xp_of(x).empty((N, h, v, O), x.dtype)
    chunks = _chunks_of(N, chunk)
    rows = epilogue.row_constants(b, f.relu, v, y)
    largest = [epilogue.empty_places(y[s]) if f.pool else None for s in chunks]
    progress = progress_hook.get()
    for s, places in zip(chunks, largest, strict=True):
        progress()
        method.outputs(s, y[s], places, rows)
        if not f.keep:
            method.kept.clear()
    method.release()
    passed = y if f.relu else None  # otherwise the backward pass does not need y

    def prepare(g: Array, needs: Sequence[bool], memory: Sequence[Any]) -> epilogue.Gradients:
        gl, shared = g.transpose(0, 2, 3, 1), _gradients(method, shape, O, needs, memory[2])
        method.begin_backward(needs[0])
        progress = progress_hook.get()
        for s, places in zip(chunks, largest, strict=True):
            progress()
            method.gradients(s, gl[s], None if passed is None else passed[s], places, shared)
        method.release()
        return shared

    vjps = _vjps(method.finish_dw, x.dtype)
    return Result(y.transpose(0, 3, 1, 2), vjps, PlacedGradients(prepare))


def conv_transpose2d(
    x: Array, w: Array, b: Array | None, f: ConvShape, size: tuple[int, int]
) -> Result:
    """Computes a transposed convolution: x (N, C, h, w), w (C, O / groups, kh, kw) to y (N, O,
    *size).

    It is the gradient of the images y, of height and width `size`, in the convolution with the
    options f: x stands for the gradient of the outputs. Memory is channels-last.

        y <--method.backward-- x        + bias
        dx <--method.forward-- g        dw <--method.backward-- x, g
    """
    xp, xl = xp_of(x), x.transpose(0, 2, 3, 1)
    wl = xp.ascontiguousarray(w.transpose(2, 3, 1, 0))
    N, O = len(x), w.shape[1] * f.groups
    y = xp.empty((N, *size, O), x.dtype)
    method, chunk = im2col(y, wl, f)
    chunks = _chunks_of(N, chunk)
    rows = epilogue.row_constants(b, False, size[1], y)
    progress = progress_hook.get()
    for s in chunks:
        progress()
        method.backward(s, xp.ascontiguousarray(xl[s]).reshape(-1, xl.shape[3]), y, None)
        epilogue.bias_relu(y[s], rows)

    def prepare(g: Array, needs: Sequence[bool]) -> epilogue.Gradients:
        gl = g.transpose(0, 2, 3, 1)
        inner, _ = im2col(gl, wl, f)
        dx, dw, db = shared = _gradients(inner, xl.shape, O, needs)
        progress = progress_hook.get()
        for s in chunks:
            progress()
            if dx is not None:
                inner.forward(s, dx[s].reshape(-1, xl.shape[3]))
            if dw is not None:
                inner.backward(s, xp.ascontiguousarray(xl[s]).reshape(-1, xl.shape[3]), None, dw)
            if db is not None:
                db += column_sum(float32_on_host(xp.ascontiguousarray(gl[s]).reshape(-1, O)))
        return shared

    return Result(y.transpose(0, 3, 1, 2), _vjps(lambda dw: dw, x.dtype), prepare)


def _gradients(
    method: ConvMethod, shape: tuple[int, ...], O: int, needs: Sequence[bool], db: Any = None
) -> epilogue.Gradients:
    """Allocates the gradients that `method` is to write: of x, of `shape` (N, H, W, C), of w and of
    b (O,), which may have the memory `db`; None where `needs` is False."""
    xp, dtype, sums = xp_of(method.x), method.x.dtype, types_of(method.x.dtype).sums
    if needs[2] and (method.adds_db or db is None or db.dtype != sums):
        db = (xp.zeros if method.adds_db else xp.empty)(O, sums)
    dx = xp.empty(shape, dtype) if needs[0] else None
    return epilogue.Gradients(dx, method.new_dw() if needs[1] else None, db)


def _vjps(finish_dw: Callable[[Array], Array], dtype: Any) -> tuple[Vjp, Vjp, Vjp]:
    """Makes the functions that return the gradients of x, w and b from a `Gradients`, in
    channels-first shapes and in this dtype. `finish_dw` is that of the ConvMethod."""

    def vjp_w(shared: epilogue.Gradients, out: Array | None) -> Array:
        dw = finish_dw(shared.dw)
        rounded = cast(dw, dtype)
        if out is None:
            return xp_of(dw).ascontiguousarray(rounded).transpose(3, 2, 0, 1)
        out.transpose(2, 3, 1, 0)[...] = rounded
        return out

    return (
        lambda shared, out: shared.dx.transpose(0, 3, 1, 2),
        vjp_w,
        lambda shared, out: cast(shared.db, dtype),
    )


def _chunks_of(N: int, chunk: int) -> list[slice]:
    """Cuts N images into slices of at most `chunk` images."""
    return [slice(i, min(i + chunk, N)) for i in range(0, N, chunk)]

"""Convolution by Winograd or im2col, in chunks of images, with the epilogue in cache.

    x --method.forward--> z --pool--> + bias --> ReLU --> y           chunk by chunk
    dx, dw <--method.backward-- dz <--unpool-- ReLU mask <-- g        and backwards

A method (`Winograd`, `Im2col`, `Depthwise`) computes raw outputs z, in its own memory order,
and returns a view of them with pooling windows first. Pooling, bias and ReLU
are done here.
"""

from collections.abc import Sequence
from typing import NamedTuple

from nnmpi.backend import Array, of, xp_of
from nnmpi.kernels import Result, Vjp, column_sum, epilogue, progress_hook
from nnmpi.kernels.im2col import Depthwise, Im2col
from nnmpi.kernels.window import Window, Windows
from nnmpi.kernels.winograd import Winograd, grid

CONVOLUTIONS = {"auto": None, "winograd2": 2, "winograd4": 4, "im2col": 0}
"""The algorithms by name, and the side m of Winograd's output tiles (0: im2col).

Where Winograd does not apply or is slower, as on a GPU, im2col is used instead.
"""

MIN_CHANNELS = 8  # with fewer, Winograd's transforms cost more than its GEMMs save


class Shape(NamedTuple):
    """What a convolution computes: relu(max_pool_2x2(conv(x, w) + b)), pool and relu optional.

    `keep`: keep what the backward pass needs.
    """

    windows: Windows
    groups: int = 1
    relu: bool = False
    pool: bool = False
    algorithm: str = "auto"
    keep: bool = True

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """The height and the width of the result, of images of this size."""
        (rows, columns), f = self.windows, 2 if self.pool else 1
        return rows.outputs(height) // f, columns.outputs(width) // f


class Shared(NamedTuple):
    """The gradients of a convolution; those that are not needed are None."""

    dx: Array
    dw: Array
    db: Array


def method_of(x: Array, w: Array, f: Shape) -> tuple[Winograd | Im2col, int]:
    """The algorithm for x (N, H, W, C) and w (kh, kw, C / groups, O), and its images per chunk."""
    N, H, W, C = x.shape
    kh, kw, _, O = w.shape
    h, v = (window.outputs(size) for window, size in zip(f.windows, (H, W), strict=True))
    budget, p = of(x).chunk_bytes, f.windows[0].before
    side = CONVOLUTIONS[f.algorithm]
    if side is None:
        side = 2 if x.dtype == "float32" else 0
    fits = f.windows == (Window(3, 1, p, p),) * 2 and f.groups == 1 and min(h, v) >= 2
    if side and of(x).is_host and fits and C >= MIN_CHANNELS:
        q = grid(side, H, W, p, f.pool)
        chunk = _chunk(N, (side + 2) ** 2 * q.th * q.tw * (C + O) * x.itemsize, budget)
        return Winograd(x, w, q, f.pool, chunk), chunk
    if f.groups == C > 1:
        chunk = _chunk(N, (H * W * C + 2 * h * v * O) * x.itemsize, budget)
        return Depthwise(x, w, f.windows, f.pool, chunk), chunk
    chunk = _chunk(N, h * v * (kh * kw * C + O) * x.itemsize, budget)
    return Im2col(x, w, f.windows, f.groups, f.pool, chunk), chunk


def _chunk(N: int, bytes_per_image: int, budget: int) -> int:
    """Images per chunk within the budget, with chunks of about equal size."""
    most = max(1, min(N, budget // max(bytes_per_image, 1)))
    return -(-N // -(-N // most)) if N else 1


def conv2d(x: Array, w: Array, b: Array | None, f: Shape) -> Result:
    """x (N, C, H, W) and w (O, C / groups, kh, kw): logical shapes over channels-last memory."""
    xl = x.transpose(0, 2, 3, 1)
    wl = xp_of(w).ascontiguousarray(w.transpose(2, 3, 1, 0))
    method, chunk = method_of(xl, wl, f)
    N, O = len(x), len(w)
    h, v = f.outputs(*x.shape[2:])
    y = xp_of(x).empty((N, h, v, O), x.dtype)
    chunks = _chunks_of(N, chunk)
    rows = epilogue.rows(b, f.relu, v, y)
    masks = []
    progress = progress_hook.get()
    for s in chunks:
        progress()
        masks.append(_epilogue(method.forward(s), y[s], rows, f.pool, method.covers))
        if not f.keep:
            method.kept.clear()
    method.release()

    def prepare(g: Array, needs: Sequence[bool]) -> Shared:
        xp, gl = xp_of(g), g.transpose(0, 2, 3, 1)
        dx = xp.empty(xl.shape, x.dtype) if needs[0] else None
        dw = method.new_dw() if needs[1] else None
        db = xp.zeros(O, x.dtype) if needs[2] else None
        method.begin_backward(needs[0])
        progress = progress_hook.get()
        for s, mask in zip(chunks, masks, strict=True):
            progress()
            gs = epilogue.relu_gradient(gl[s], y[s]) if f.relu else xp.ascontiguousarray(gl[s])
            if db is not None:
                db += column_sum(gs.reshape(-1, O))
            dz, view = method.cotangent(len(gs))
            _epilogue_gradient(gs, view, mask, method.covers)
            progress()
            method.backward(s, dz, dx, dw)
        method.release()
        return Shared(dx, dw, db)

    return Result(y.transpose(0, 3, 1, 2), _vjps_of(method), prepare)


def conv_transpose2d(
    x: Array, w: Array, b: Array | None, f: Shape, size: tuple[int, int]
) -> Result:
    """x (N, C, h, w) and w (C, O / groups, kh, kw) to y (N, O, *size), channels last in memory.

    What a convolution does on its way back, done forwards. f is that convolution, from images of
    `size` to those of x, by im2col.

        y <--method.backward-- x        + bias              the gradient of a convolution's input
        dx <--method.forward-- g        dw <--method.backward-- x, g
    """
    xp, xl = xp_of(x), x.transpose(0, 2, 3, 1)
    wl = xp.ascontiguousarray(w.transpose(2, 3, 1, 0))
    N, O = len(x), w.shape[1] * f.groups
    y = xp.empty((N, *size, O), x.dtype)
    method, chunk = method_of(y, wl, f)
    chunks = _chunks_of(N, chunk)
    rows = epilogue.rows(b, False, size[1], y)
    progress = progress_hook.get()
    for s in chunks:
        progress()
        dz, view = method.cotangent(s.stop - s.start)
        view[...] = xl[s]
        method.backward(s, dz, y, None)
        epilogue.bias_relu(y[s], rows)

    def prepare(g: Array, needs: Sequence[bool]) -> Shared:
        gl = g.transpose(0, 2, 3, 1)
        inner, _ = method_of(gl, wl, f)
        dx = xp.empty(xl.shape, x.dtype) if needs[0] else None
        dw = inner.new_dw() if needs[1] else None
        db = xp.zeros(O, x.dtype) if needs[2] else None
        progress = progress_hook.get()
        for s in chunks:
            progress()
            if dx is not None:
                dx[s] = inner.forward(s)
            if dw is not None:
                dz, view = inner.cotangent(s.stop - s.start)
                view[...] = xl[s]
                inner.backward(s, dz, None, dw)
            if db is not None:
                db += column_sum(xp.ascontiguousarray(gl[s]).reshape(-1, O))
        return Shared(dx, dw, db)

    return Result(y.transpose(0, 3, 1, 2), _vjps_of(method), prepare)


def _vjps_of(method: Winograd | Im2col) -> tuple[Vjp, Vjp, Vjp]:
    """The vjps of x, w and b from `Shared`."""

    def vjp_w(shared: Shared, out: Array | None) -> Array:
        ol = None if out is None else out.transpose(2, 3, 1, 0)
        if ol is not None and ol.flags.c_contiguous:
            method.finish_dw(shared.dw, ol)
            return out
        return method.finish_dw(shared.dw, None).transpose(3, 2, 0, 1)

    return (
        lambda shared, out: shared.dx.transpose(0, 3, 1, 2),
        vjp_w,
        lambda shared, out: shared.db,
    )


def _chunks_of(N: int, chunk: int) -> list[slice]:
    """N images in chunks."""
    return [slice(i, min(i + chunk, N)) for i in range(0, N, chunk)]


def _epilogue(
    z: Array, y: Array, rows: epilogue.RowConstants, pool: bool, covers: tuple[int, int]
) -> epilogue.Masks | None:
    """From a chunk's raw outputs z to y (n, h, w, O): pool, crop what tiles add, bias, ReLU."""
    n, h, w, O = y.shape
    whole = y if (h, w) == covers else xp_of(y).empty((n, *covers, O), y.dtype)
    mask = None
    if pool:
        mask = epilogue.pool_windows(z, whole.reshape(z.shape[2:]))
    else:
        whole.reshape(z.shape)[...] = z
    if whole is not y:
        y[...] = whole[:, :h, :w]
    epilogue.bias_relu(y, rows)
    return mask


def _epilogue_gradient(
    g: Array, view: Array, mask: epilogue.Masks | None, covers: tuple[int, int]
) -> None:
    """The transpose of pool and crop: g (n, h, w, O) into `view`, the gradient of z."""
    n, h, w, O = g.shape
    if (h, w) != covers:
        whole = xp_of(g).zeros((n, *covers, O), g.dtype)
        whole[:, :h, :w] = g
        g = whole
    if mask is None:
        view[...] = g.reshape(view.shape)
    else:
        epilogue.unpool_windows(g.reshape(view.shape[2:]), mask, view)

"""Transposed convolution: what a convolution does on its way back, done forwards.

    y <--method.backward-- x        + bias                  the gradient of a convolution's input
    dx <--method.forward-- g        dw <--method.backward-- x, g

The method is that of the convolution which takes images of y's shape to images of x's.
"""

from collections.abc import Sequence

from nnmpi.backend import Array, xp_of
from nnmpi.kernels import Result, column_sum, epilogue, progress_hook
from nnmpi.kernels.conv import Shape, Shared, chunks_of, method_of, vjps_of


def conv_transpose2d(
    x: Array, w: Array, b: Array | None, f: Shape, size: tuple[int, int]
) -> Result:
    """x (N, C, h, w) and w (C, O / groups, kh, kw) to y (N, O, *size), channels last in memory.

    f is the convolution from images of `size` to those of x, by im2col.
    """
    xp, xl = xp_of(x), x.transpose(0, 2, 3, 1)
    wl = xp.ascontiguousarray(w.transpose(2, 3, 1, 0))
    N, O = len(x), w.shape[1] * f.groups
    y = xp.empty((N, *size, O), x.dtype)
    method, chunk = method_of(y, wl, f)
    chunks = chunks_of(N, chunk)
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

    return Result(y.transpose(0, 3, 1, 2), vjps_of(method), prepare)

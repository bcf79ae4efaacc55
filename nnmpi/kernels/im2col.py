"""Convolution as one GEMM over gathered columns, channels last: any kernel, stride and padding.

    wide (C > 4):    columns (T, kh*kw*C), gathered in runs of kw*C numbers
    narrow (C <= 4): columns (kh*kw*C, T), gathered in runs of a row of outputs

with T = f * f * n * h * w outputs, f = 2 where pooling follows and 1 elsewhere:
output (f*i + a, f*j + b) comes at [a, b, image, i, j], so that a pooling window
is the same place in four planes. Narrow columns are kept for the backward pass,
wide ones gathered again: that is faster than reading them back from memory.
"""

from itertools import product
from math import prod

from nnmpi.backend import Array, xp_of

NARROW = 4


def output_size(size: int, kernel: int, stride: int, padding: int) -> int:
    """The number of positions of a kernel along an axis."""
    return (size + 2 * padding - kernel) // stride + 1


class Im2col:
    """Convolution by im2col, in chunks of images; the interface is that of `Winograd`."""

    def __init__(
        self, x: Array, w: Array, stride: int, padding: int, pool: bool, chunk: int
    ) -> None:
        """x (N, H, W, C) in any strides, w (kh, kw, C, O) contiguous."""
        self.x, self.w, self.xp = x, w, xp_of(x)
        self.stride, self.padding, self.f = stride, padding, 2 if pool else 1
        _, H, W, C = x.shape
        kh, kw = w.shape[:2]
        h, v = (output_size(n, k, stride, padding) for n, k in ((H, kh), (W, kw)))
        self.covers = (h // self.f, v // self.f)
        self.narrow, self.kept = C <= NARROW, dict[int, Array]()
        shape = (chunk, C, H + 2 * padding, W + 2 * padding)
        padded = self.xp.zeros(shape if self.narrow else (shape[0], *shape[2:], C), x.dtype)
        self.padded = padded.transpose(0, 2, 3, 1) if self.narrow else padded

    def _windows(self, padded: Array) -> Array:
        """padded (n, Hp, Wp, C) as (f, f, n, h, w, kh, kw, C), a view."""
        n, _, _, C = padded.shape
        sn, sh, sw, sc = padded.strides
        f, t, kernel = self.f, self.stride, self.w.shape[:2]
        strides = (t * sh, t * sw, sn, f * t * sh, f * t * sw, sh, sw, sc)
        as_strided = self.xp.lib.stride_tricks.as_strided
        view: Array = as_strided(padded, (f, f, n, *self.covers, *kernel, C), strides)
        return view

    def _columns(self, s: slice) -> Array:
        """(T, kh*kw*C) for images x[s]; narrow ones lie in memory as their transpose."""
        if s.start in self.kept:
            return self.kept[s.start]
        x = self.x[s]
        n, H, W, _ = x.shape
        p = self.padding
        self.padded[:n, p : p + H, p : p + W] = x
        windows = self._windows(self.padded[:n])
        K = prod(windows.shape[5:])
        if not self.narrow:
            return self.xp.ascontiguousarray(windows).reshape(-1, K)
        planes = windows.transpose(5, 6, 7, 0, 1, 2, 3, 4).copy()  # never a view of `padded`
        self.kept[s.start] = planes.reshape(K, -1).T
        return self.kept[s.start]

    def _outputs(self, z: Array, n: int) -> Array:
        """z (T, O) as pooling windows (2, 2, n, h, w, O), or as images (n, h, w, O)."""
        z = z.reshape(self.f, self.f, n, *self.covers, -1)
        return z if self.f > 1 else z[0, 0]

    def forward(self, s: slice) -> Array:
        """The outputs of images x[s], without bias."""
        cols = self._columns(s)
        return self._outputs(cols @ self.w.reshape(cols.shape[1], -1), len(self.x[s]))

    def cotangent(self, n: int) -> tuple[Array, Array]:
        """A buffer for the gradient of n outputs, and its view in the order of `forward`."""
        T = self.f**2 * n * self.covers[0] * self.covers[1]
        dz = self.xp.empty((T, self.w.shape[3]), self.x.dtype)
        return dz, self._outputs(dz, n)

    def new_dw(self) -> Array:
        """Zeros for `backward` to add to."""
        return self.xp.zeros_like(self.w)

    def finish_dw(self, dw: Array, out: Array | None) -> Array:
        """The gradient of w: the sum itself."""
        if out is None:
            return dw
        out[...] = dw
        return out

    def begin_backward(self, needs_dx: bool) -> None:
        """Before the first `backward`."""

    def release(self) -> None:
        """After the last chunk of a pass."""

    def backward(self, s: slice, dz: Array, dx: Array | None, dw: Array | None) -> None:
        """From dz (T, O) of images x[s]: write dx[s] and add to dw, unless None."""
        w = self.w.reshape(-1, self.w.shape[3])
        if dw is not None:
            total = dw.reshape(w.shape)
            total += self._columns(s).T @ dz
        if dx is not None:
            dx[s] = self._overlap_add(dz @ w.T)

    def _overlap_add(self, dcols: Array) -> Array:
        """Add the gradient of every column to the pixels it was gathered from."""
        (_, H, W, C), (kh, kw, _, _), p = self.x.shape, self.w.shape, self.padding
        f, t, (h, w) = self.f, self.stride, self.covers
        dcols = dcols.reshape(f, f, -1, h, w, kh, kw, C)
        padded = self.xp.zeros((dcols.shape[2], H + 2 * p, W + 2 * p, C), dcols.dtype)
        for a, b, i, j in product(range(f), range(f), range(kh), range(kw)):
            r, c = t * a + i, t * b + j
            rows, columns = slice(r, r + f * t * h, f * t), slice(c, c + f * t * w, f * t)
            padded[:, rows, columns] += dcols[a, b, :, :, :, i, j]
        return padded[:, p : p + H, p : p + W]

"""Convolution of each channel alone, as a weighted sum of shifted images, without columns.

    z[n, h, w, c] = sum over i, j of x[n, h * down + i * dh, w * right + j * dw, c] * w[i, j, c]

Each image moves kh * kw times through the cache; columns would move it through memory.
"""

from collections.abc import Iterator

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.arrays.kernels.im2col import Im2col, gather_loop
from nnmpi.arrays.kernels.window import Windows
from nnmpi.arrays.native.table import InOut, Out, kernel


def _terms(x: Array, w: Array, z: Array, *steps: int) -> Iterator[tuple[tuple[int, int], Array]]:
    """Yields, for each element of the kernel, its index and the pixels of x that it weights."""
    down, right, dh, dw = steps
    h, columns = ((n - 1) * step + 1 for n, step in zip(z.shape[1:3], (down, right), strict=True))
    for i in range(w.shape[0]):
        for j in range(w.shape[1]):
            top, left = i * dh, j * dw
            yield (i, j), x[:, top : top + h : down, left : left + columns : right]


def _rows(w: Array, z: Array) -> Array:
    """Repeats each weight over a row of outputs, since operations on single pixels are slow."""
    kh, kw, C = w.shape
    xp = xp_of(w)
    return xp.ascontiguousarray(xp.broadcast_to(w[:, :, None], (kh, kw, z.shape[2], C)))


@kernel
def depthwise_outputs(x: Array, w: Array, z: Out, down: int, right: int, dh: int, dw: int) -> None:
    """Writes the outputs z (n, h, w, C) of padded images x (n, H, W, C) and weights w (kh, kw,
    C)."""
    z.fill(0)
    rows = _rows(w, z)
    for k, pixels in _terms(x, w, z, down, right, dh, dw):
        z += pixels * rows[k]


@kernel
def depthwise_images(z: Array, w: Array, x: InOut, down: int, right: int, dh: int, dw: int) -> None:
    """Adds the gradient of the padded images to x, from the gradient z of the outputs."""
    rows = _rows(w, z)
    for k, pixels in _terms(x, w, z, down, right, dh, dw):
        pixels += z * rows[k]


@kernel
def depthwise_weights(
    x: Array, z: Array, w: InOut, down: int, right: int, dh: int, dw: int
) -> None:
    """Adds the gradient of the weights to w, from the gradient z of the outputs."""
    for k, pixels in _terms(x, w, z, down, right, dh, dw):
        w[k] += column_sum((pixels * z).reshape(-1, w.shape[2]))


class Depthwise(Im2col):
    """Convolution with as many groups as channels, and O / C outputs for each channel."""

    narrow_up_to = 0  # pixels are added up channels-last, so images are never stored as planes

    def __init__(self, x: Array, w: Array, windows: Windows, pool: bool, chunk: int) -> None:
        """Takes x (N, H, W, C) with any strides and w (kh, kw, 1, O) contiguous."""
        super().__init__(x, w, windows, 1, pool, chunk)
        rows, columns = windows
        self.steps = (
            self.f * rows.stride,
            self.f * columns.stride,
            rows.dilation,
            columns.dilation,
        )

    def _multiples(self, w: Array) -> Array:
        """Returns w (kh, kw, 1, O) as (O / C, kh, kw, C): a view."""
        (kh, kw, _, O), C = w.shape, self.x.shape[3]
        return self.xp.moveaxis(w.reshape(kh, kw, C, O // C), -1, 0)

    def _parts(self, padded: Array, z: Array) -> Iterator[tuple[int, Array, Array]]:
        """Yields (m, images, their outputs in z (T, O) for multiple m of the channels, (n, h, w,
        C)).

        Each place in a pooling window is a part of its own.
        """
        n, C, (rows, columns) = len(padded), self.x.shape[3], self.windows
        z = z.reshape(self.f, self.f, n, *self.covers, C, z.shape[1] // C)
        for a in range(self.f):
            for b in range(self.f):
                images = padded[:, a * rows.stride :, b * columns.stride :]
                for m in range(z.shape[-1]):
                    yield m, images, z[a, b, ..., m]

    def forward(self, s: slice, z: Array) -> None:
        """Writes the outputs z (T, O) of images x[s], without bias."""
        weights = self._multiples(self.w)
        for m, images, part in self._parts(self._padded(s), z):
            depthwise_outputs(images, weights[m], part, *self.steps)

    def backward(self, s: slice, dz: Array, dx: Array | None, dw: Array | None) -> None:
        """Writes dx[s] and adds to dw, from the gradient dz (T, O) of images x[s]; each may be
        None."""
        if dw is not None:
            multiples = self._multiples(dw)
            for m, images, part in self._parts(self._padded(s), dz):
                depthwise_weights(images, part, multiples[m], *self.steps)
        if dx is not None:
            d, weights = self._zeros(len(dx[s]), self.sums), self._multiples(self.w)
            for m, images, part in self._parts(d, dz):
                depthwise_images(part, weights[m], images, *self.steps)
            gather_loop(self._cropped(d), dx[s])

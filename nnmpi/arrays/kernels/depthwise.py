"""Convolution of each channel alone, as a weighted sum of shifted images, without im2col's columns.

    z[n, h, w, c] = sum over i, j of
                    x[n, h * down + i * dh - top, w * right + j * dw - left, c] * w[i, j, c]

where pixels outside of an image are zero. Each image moves kh * kw times through the cache; columns
would move it through memory, and so would images with their padding.
"""

from collections.abc import Iterator

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels import column_sum
from nnmpi.arrays.kernels.im2col import Im2col, gather_loop
from nnmpi.arrays.kernels.window import Windows
from nnmpi.arrays.native.table import InOut, Out, kernel

Term = tuple[tuple[int, int], Array, Array]


def _met(inputs: int, outputs: int, offset: int, step: int) -> tuple[slice, slice]:
    """Returns the inputs that one weight multiplies along an axis, and the outputs that get the
    products: output p reads input p * step + offset, unless it is outside of the image."""
    first = max(0, -(offset // step))
    end = max(first, min(outputs, (inputs - 1 - offset) // step + 1))
    start = first * step + offset
    return slice(start, start + (end - first) * step, step), slice(first, end)


def _terms(x: Array, w: Array, z: Array, *steps: int) -> Iterator[Term]:
    """Yields, for each element of the kernel: its index, the pixels of x that it multiplies, and
    the pixels of z to which the products are added. `steps` are those of `depthwise_outputs`."""
    top, left, down, right, dh, dw = steps
    for i in range(w.shape[0]):
        rows, h = _met(x.shape[1], z.shape[1], i * dh - top, down)
        for j in range(w.shape[1]):
            columns, v = _met(x.shape[2], z.shape[2], j * dw - left, right)
            yield (i, j), x[:, rows, columns], z[:, h, v]


def _rows(w: Array, z: Array) -> Array:
    """Returns w (kh, kw, C) repeated over a row of z: NumPy is slow on pixels."""
    kh, kw, C = w.shape
    xp = xp_of(w)
    return xp.ascontiguousarray(xp.broadcast_to(w[:, :, None], (kh, kw, z.shape[2], C)))


@kernel
def depthwise_outputs(
    x: Array, w: Array, z: Out, top: int, left: int, down: int, right: int, dh: int, dw: int
) -> None:
    """Writes the outputs z (n, h, w, C) of images x (n, H, W, C) and weights w (kh, kw, C), where
    each channel is convolved alone.

    `top` and `left` are paddings, `down` and `right` strides, `dh` and `dw` dilations.
    """
    z.fill(0)
    rows = _rows(w, z)
    for k, pixels, part in _terms(x, w, z, top, left, down, right, dh, dw):
        part += pixels * rows[k][: part.shape[2]]


@kernel
def depthwise_images(
    z: Array,
    w: Array,
    x: InOut,
    adds: bool,
    top: int,
    left: int,
    down: int,
    right: int,
    dh: int,
    dw: int,
) -> None:
    """Writes the gradient of images x (n, H, W, C), or adds it to x if `adds`, from the gradient z
    of the outputs. Options are those of `depthwise_outputs`."""
    if not adds:
        x.fill(0)
    rows = _rows(w, z)
    for k, pixels, part in _terms(x, w, z, top, left, down, right, dh, dw):
        pixels += part * rows[k][: part.shape[2]]


@kernel
def depthwise_weights(
    x: Array, z: Array, w: InOut, top: int, left: int, down: int, right: int, dh: int, dw: int
) -> None:
    """Adds the gradient of the weights to w (kh, kw, C), from images x (n, H, W, C) and the
    gradient z (n, h, w, C) of the outputs. Options are those of `depthwise_outputs`."""
    for k, pixels, part in _terms(x, w, z, top, left, down, right, dh, dw):
        w[k] += column_sum((pixels * part).reshape(-1, w.shape[2]))


class Depthwise(Im2col):
    """Convolution with as many groups as channels, and O / C outputs for each channel."""

    narrow_up_to = 0

    def __init__(self, x: Array, w: Array, windows: Windows, pool: bool) -> None:
        """Takes images x (N, H, W, C) with any strides and contiguous weights w (kh, kw, 1, O);
        `pool` is True if a 2x2 max-pool follows."""
        super().__init__(x, w, windows, 1, pool, 0)
        rows, columns = windows
        self.steps = (
            self.f * rows.stride,
            self.f * columns.stride,
            rows.dilation,
            columns.dilation,
        )

    def _multiples(self, w: Array) -> Array:
        """Returns w (kh, kw, 1, O) as (O / C, kh, kw, C): a filter per channel each."""
        (kh, kw, _, O), C = w.shape, self.x.shape[3]
        return self.xp.moveaxis(w.reshape(kh, kw, C, O // C), -1, 0)

    def _parts(self, n: int, z: Array) -> Iterator[tuple[int, Array, tuple[int, ...]]]:
        """Yields what one call of a depthwise kernel can write, as (m, outputs, numbers).

        Such a call computes one output per channel, so there is an item for each m below O / C, and
        with pooling for each position in a window. `outputs` is a view (n, h, w, C) of z (T, O),
        and `numbers` are the integer arguments of the kernel.
        """
        C, (rows, columns) = self.x.shape[3], self.windows
        z = z.reshape(self.f, self.f, n, *self.covers, C, z.shape[1] // C)
        for a in range(self.f):
            for b in range(self.f):
                top, left = rows.before - a * rows.stride, columns.before - b * columns.stride
                for m in range(z.shape[-1]):
                    yield m, z[a, b, ..., m], (top, left, *self.steps)

    def _images(self, s: slice) -> Array:
        """Returns images x[s] with adjacent channels."""
        x = self.x[s]
        return x if x.strides[3] == x.itemsize else self.xp.ascontiguousarray(x)

    def forward(self, s: slice, z: Array) -> None:
        x, weights = self._images(s), self._multiples(self.w)
        for m, part, numbers in self._parts(len(x), z):
            depthwise_outputs(x, weights[m], part, *numbers)

    def backward(self, s: slice, dz: Array, dx: Array | None, dw: Array | None) -> None:
        if dw is not None:
            x, multiples = self._images(s), self._multiples(dw)
            for m, part, numbers in self._parts(len(x), dz):
                depthwise_weights(x, part, multiples[m], *numbers)
        if dx is not None:
            images, weights = dx[s], self._multiples(self.w)
            d = images if dx.dtype == self.sums else self.xp.empty(images.shape, self.sums)
            for k, (m, part, numbers) in enumerate(self._parts(len(d), dz)):
                depthwise_images(part, weights[m], d, k > 0, *numbers)
            if d is not images:
                gather_loop(d, images)

"""Convolution of each channel alone, as a weighted sum of shifted images, channels last.

    z[.., o] = sum over i, j of x[.. + i, .. + j, c] * w[i, j, o]    O / C outputs o a channel c

It moves each image kh * kw times through the cache, which columns would do through memory. Weights
are repeated over a row of outputs, since operations on single pixels are slow.
"""

from collections.abc import Iterator

from nnmpi.backend import Array
from nnmpi.kernels import column_sum
from nnmpi.kernels.im2col import Im2col
from nnmpi.kernels.window import Windows


class Depthwise(Im2col):
    """Im2col without columns, for as many groups as channels."""

    def __init__(self, x: Array, w: Array, windows: Windows, pool: bool, chunk: int) -> None:
        """x (N, H, W, C) in any strides, w (kh, kw, 1, O) contiguous."""
        super().__init__(x, w, windows, 1, pool, chunk)

    def _is_narrow(self) -> bool:
        """Whether images lie as planes in memory: pixels are added up here."""
        return False

    def _terms(self, padded: Array) -> Iterator[tuple[tuple[int, ...], Array]]:
        """For each element of the kernel its index, and the shifted images that it weights."""
        places = self._places(padded)
        kh, kw = places.shape[-3:-1]
        for i in range(kh):
            for j in range(kw):
                yield (i, j), places[..., i, j, :]

    def _multiples(self, z: Array, n: int) -> Array:
        """z (T, O) as (O / C, f, f, n, h, w, C): a view."""
        C = self.x.shape[3]
        z = z.reshape(self.f, self.f, n, *self.covers, C, z.shape[1] // C)
        return self.xp.moveaxis(z, -1, 0)

    def _rows(self) -> Array:
        """The weights, each repeated over a row of outputs: (O / C, kh, kw, w, C)."""
        (kh, kw, _, O), C = self.w.shape, self.x.shape[3]
        w = self.xp.moveaxis(self.w.reshape(kh, kw, 1, C, O // C), -1, 0)
        return self.xp.ascontiguousarray(
            self.xp.broadcast_to(w, (O // C, kh, kw, self.covers[1], C))
        )

    def forward(self, s: slice) -> Array:
        """The outputs of images x[s], without bias."""
        n = len(self.x[s])
        z, outputs = self.cotangent(n)
        z.fill(0)
        padded = self._padded(s)
        for total, rows in zip(self._multiples(z, n), self._rows(), strict=True):
            for k, x in self._terms(padded):
                total += x * rows[k]
        return outputs

    def backward(self, s: slice, dz: Array, dx: Array | None, dw: Array | None) -> None:
        """From dz (T, O) of images x[s]: write dx[s] and add to dw, unless None."""
        n, C = len(self.x[s]), self.x.shape[3]
        each = self._multiples(dz, n)
        if dw is not None:
            padded = self._padded(s)
            sums = self.xp.moveaxis(dw.reshape(*dw.shape[:2], C, len(each)), -1, 0)
            for g, total in zip(each, sums, strict=True):
                for k, x in self._terms(padded):
                    total[k] += column_sum((x * g).reshape(-1, C))
        if dx is not None:
            d = self._zeros(n)
            for g, rows in zip(each, self._rows(), strict=True):
                for k, place in self._terms(d):
                    place += g * rows[k]
            dx[s] = self._cropped(d)

"""Bands: cuts a convolution of large images by rows, so that the work on each band fits the cache.

The convolution kernel takes as many images at a time as fit. If not even one fits, each stage of
the kernel reads what the last one wrote from memory, which all cores share. So the kernel is given
overlapping bands of rows as if they were images; they are views, not copies.

    samples one under another           bands                       kernel k, stride s
    ┌──────────┐ pitch rows             ┌──────────┐ step rows
    │ sample 0 │                        │ band 0   │               step = s * rows of output a band
    ├──────────┤                        ├──────────┤
    │ sample 1 │                        │ band 1   │               a band reads k - s rows more,
    └──────────┘                        └──────────┘               which are the first of the next

Outputs of windows that begin in one sample and end in the next are left out: their gradient is 0.
"""

from typing import NamedTuple, Self

from nnmpi.arrays.backend import Array, xp_of
from nnmpi.arrays.kernels.window import Window

LEAST = 4
"""Rows of a band's output are a multiple, so that windows and tiles fit."""

WORTHWHILE = 8
"""Samples are cut into at least so many bands: surplus rows are cheap then."""


class Bands(NamedTuple):
    """Overlapping bands of the rows of n samples (images), which a convolution kernel takes as if
    they were `number` images with `rows` rows of output each.

    conv      the window of the convolution alone, without padding
    outputs   rows of output of a sample before pooling
    pitch     rows of output from one sample to the next
    f         rows of output that one row of the result is pooled from: 2 or 1
    """

    conv: Window
    n: int
    outputs: int
    pitch: int
    number: int
    rows: int
    f: int

    @classmethod
    def of(cls, conv: Window, pool: bool, n: int, rows: int, row_bytes: int, budget: int) -> Self:
        """Returns the Bands that cut n samples, of `rows` rows each, into bands of about `budget`
        bytes, if a row of output takes `row_bytes`; with `pool`, rows of output are pooled 2 to 1.
        Samples that would have few bands are not cut."""
        f, outputs = 2 if pool else 1, conv.outputs(rows)
        overlap = -(-max(conv.span - conv.stride, 0) // conv.stride)
        band = -(-max(budget // row_bytes, overlap, 1) // LEAST) * LEAST
        if not n or outputs < WORTHWHILE * band:
            return cls(conv, n, outputs, outputs, n, outputs, f)
        pitch = outputs + overlap
        pitch += pitch % f
        number = -(-((n - 1) * pitch + outputs) // band)
        return cls(conv, n, outputs, pitch, number, band, f)

    @property
    def are_samples(self) -> bool:
        """True if the samples are not cut into bands: the kernel gets each sample as one image."""
        return self.number == self.n and self.rows == self.outputs

    @property
    def band(self) -> int:
        """The number of input rows of a band, which the kernel gets as one image."""
        return (self.rows - 1) * self.conv.stride + self.conv.span

    @property
    def step(self) -> int:
        """The input rows from band to band; all of a sample that is not cut."""
        return self.band if self.are_samples else self.rows * self.conv.stride

    @property
    def sample(self) -> int:
        """The input rows from sample to sample in the buffer of all."""
        return self.band if self.are_samples else self.pitch * self.conv.stride

    def buffer(self, like: Array, width: int, channels: int) -> Array:
        """Returns zeros with room for the input rows of all samples."""
        rows = max(self.n * self.sample, self.number and (self.number - 1) * self.step + self.band)
        return xp_of(like).zeros((rows, width, channels), like.dtype)

    def samples(self, tall: Array, rows: int) -> Array:
        """Returns the first `rows` rows of each sample, as a view (N, rows, W, C)."""
        return _stacked(tall, self.n, self.sample, rows)

    def images(self, tall: Array) -> Array:
        """Returns the bands that the kernel takes as images, as a view."""
        return _stacked(tall, self.number, self.step, self.band)

    def result(self, y: Array) -> Array:
        """Returns the samples' output, as a view of that of bands."""
        if self.are_samples:
            return y
        tall = y.reshape(-1, *y.shape[2:])
        return _stacked(tall, self.n, self.pitch // self.f, self.outputs // self.f)

    def cotangent(self, g: Array) -> Array:
        """Returns the gradient of the kernel's output for all bands from that for the samples, the
        transpose of `result`: 0 for rows that it leaves out."""
        rows = self.rows // self.f
        if self.number * rows == self.n * g.shape[1]:
            return g.reshape(self.number, rows, *g.shape[2:])
        rows_of_all = xp_of(g).zeros((self.number, rows, *g.shape[2:]), g.dtype)
        self.result(rows_of_all)[...] = g
        return rows_of_all

    def gradient(self, d: Array) -> Array:
        """Returns the gradient of the samples' input rows (N, rows of a sample, W, C), given that
        of the bands, d (number, rows, W, C): rows that two bands read are added."""
        if self.are_samples:
            return d
        tall = self.buffer(d, *d.shape[2:])
        mine = min(self.step, self.band)
        _stacked(tall, self.number, self.step, mine)[...] = d[:, :mine]
        if mine < self.band:
            rest = tall[self.step :]
            _stacked(rest, self.number, self.step, self.band - mine)[...] += d[:, mine:]
        return self.samples(tall, (self.outputs - 1) * self.conv.stride + self.conv.span)


def _stacked(tall: Array, n: int, step: int, rows: int) -> Array:
    """Returns n overlapping slices of rows, `step` apart, as a view."""
    row, *rest = tall.strides
    as_strided = xp_of(tall).lib.stride_tricks.as_strided
    return as_strided(tall, (n, rows, *tall.shape[1:]), (step * row, row, *rest))

"""Convolution as one GEMM over gathered columns, channels last: any kernel, stride and padding.

    wide (C > 4):    columns (T, kh*kw*C), gathered in runs of kw*C elements
    narrow (C <= 4): columns (kh*kw*C, T), gathered in runs of a row of outputs

with T = f * f * n * h * w outputs, f = 2 if pooling follows and else 1: output (f*i + a, f*j + b)
is at [a, b, image, i, j], so that a pooling window is the same place in four planes. Narrow columns
are kept for the backward pass. Wide ones are gathered again, which is faster than reading them.

Groups are a leading axis of columns, weights and outputs (C is then the number of channels of one
group). There is one GEMM for each group; all write to one array of outputs (T, O).

Columns have the dtype of images; products are added up in the `sums` dtype (`dtypes.py`).
"""

from functools import partial
from math import prod
from typing import Any

from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import epilogue, progress_hook
from nnmpi.arrays.kernels.epilogue import Gradients, RowConstants
from nnmpi.arrays.kernels.linear import products_loop
from nnmpi.arrays.kernels.window import Window, Windows
from nnmpi.arrays.native.table import InOut, Out, kernel

NARROW = 4


@partial(kernel, composed=True)
def gather_loop(places: Array, columns: Out) -> None:
    """Copies windows of images, a view (..., kh, kw, C) in which they overlap, to the rows of an
    im2col matrix of as many elements, rounded to its dtype."""
    columns[...] = places


@kernel
def overlap_loop(places: InOut, columns: Array) -> None:
    """Adds each column to the window from which `gather_loop` copied it, of which this is the
    transpose: pixels in several windows get the sum."""
    for i in range(places.shape[-3]):
        for j in range(places.shape[-2]):
            place = places[..., i, j, :]
            place += columns[..., i, j, :]


class Im2col:
    """Convolution by im2col: one matrix product for each chunk of images."""

    narrow_up_to = NARROW
    adds_db = True

    def __init__(
        self, x: Array, w: Array, windows: Windows, groups: int, pool: bool, chunk: int
    ) -> None:
        """Takes images x (N, H, W, C) with any strides and contiguous weights w (kh, kw, C /
        groups, O); `pool`: a 2x2 max-pool follows; `chunk` images are computed at a time."""
        self.x, self.w, self.xp = x, w, xp_of(x)
        self.windows, self.groups, self.f = windows, groups, 2 if pool else 1
        self.sums = types_of(x.dtype).sums
        _, H, W, C = x.shape
        rows, columns = windows
        self.covers = (rows.outputs(H) // self.f, columns.outputs(W) // self.f)
        # narrow: columns are gathered in runs of a row of outputs
        self.narrow, self.keeps = w.shape[2] <= self.narrow_up_to, C <= NARROW
        # unpadded: windows are views of x itself; pointwise: its pixels are the columns
        is_whole = (rows.padded(H), columns.padded(W)) == (H, W)
        self.unpadded = is_whole and not self.narrow and x.strides[3] == x.itemsize
        self.pointwise = (
            self.unpadded
            and self.covers == (H, W)
            and groups == 1
            and all((window.kernel, window.stride) == (1, 1) for window in windows)
        )
        self.kept = dict[int, Array]()
        self.padded = self._zeros(0 if self.unpadded else chunk, x.dtype)

    def _zeros(self, n: int, dtype: Any) -> Array:
        """Allocates n padded images of zeros, (n, Hp, Wp, C), narrow ones with channels first in
        memory, so that a row of pixels is contiguous."""
        (_, H, W, C), (rows, columns) = self.x.shape, self.windows
        size = (rows.padded(H), columns.padded(W))
        if not self.narrow:
            return self.xp.zeros((n, *size, C), dtype)
        return self.xp.zeros((n, C, *size), dtype).transpose(0, 2, 3, 1)

    def _grouped(self, a: Array) -> Array:
        """Returns a matrix (K, O) as a view (groups, K, O / groups)."""
        return a.reshape(len(a), self.groups, a.shape[1] // self.groups).transpose(1, 0, 2)

    def _places(self, padded: Array) -> Array:
        """Returns the windows of padded images: a view (groups, f, f, n, h, w, kh, kw, C / groups),
        where f is the axis in a 2x2 pooling window, or 1."""
        n, _, _, C = padded.shape
        sn, sh, sw, sc = padded.strides
        f, (rows, columns) = self.f, self.windows
        some = C // self.groups
        down, right = rows.stride * sh, columns.stride * sw
        kernel = (rows.dilation * sh, columns.dilation * sw, sc)
        shape = (self.groups, f, f, n, *self.covers, rows.kernel, columns.kernel, some)
        strides = (some * sc, down, right, sn, f * down, f * right, *kernel)
        return self.xp.lib.stride_tricks.as_strided(padded, shape, strides)

    def _padded(self, s: slice) -> Array:
        """Returns images x[s] with their padding."""
        x = self.x[s]
        n, H, W, _ = x.shape
        rows, columns = self.windows
        if self.unpadded:
            return x
        top, left = rows.before, columns.before
        self.padded[:n, top : top + H, left : left + W] = x
        return self.padded[:n]

    def _columns(self, s: slice) -> Array:
        """Returns the im2col matrices of images x[s], (groups, T, kh*kw*C), with the window of each
        output pixel as a row; narrow ones are stored transposed, and kept for the backward pass."""
        if s.start in self.kept:
            return self.kept[s.start]
        places = self._places(self._padded(s))
        groups, T, K = self.groups, prod(places.shape[1:6]), prod(places.shape[6:])
        if not self.narrow:
            columns = places
            if not places.flags.c_contiguous:
                columns = self.xp.empty(places.shape, places.dtype)
                gather_loop(places, columns)
            return columns.reshape(groups, T, K)
        planes = places.transpose(0, 6, 7, 8, *range(1, 6)).copy()  # `padded` is used again
        columns = planes.reshape(groups, K, T).swapaxes(1, 2)
        if self.keeps:
            self.kept[s.start] = columns
        return columns

    def _outputs(self, z: Array, n: int) -> Array:
        """Returns a view (n, h, w, O) of z (T, O), the outputs of n images; with pooling (2, 2, n,
        h, w, O), first the position in a window."""
        z = z.reshape(self.f, self.f, n, *self.covers, -1)
        return z if self.f > 1 else z[0, 0]

    def forward(self, s: slice, z: Array) -> None:
        """Writes the convolution of x[s], without bias, to z (T, O), a row for each pixel."""
        w = self.w.reshape(-1, self.w.shape[3])
        products_loop(self._columns(s), self._grouped(w), self._grouped(z), False)

    def room(self, n: int, dtype: Any) -> tuple[Array, Array]:
        """Allocates the outputs (T, O) of n images before pooling; returns them and `_outputs`."""
        T = self.f**2 * n * self.covers[0] * self.covers[1]
        dz = self.xp.empty((T, self.w.shape[3]), dtype)
        return dz, self._outputs(dz, n)

    def new_dw(self) -> Array:
        """Returns zeros, to which `backward` adds the gradient of w."""
        return self.xp.zeros_like(self.w, self.sums)

    def finish_dw(self, dw: Array) -> Array:
        """Returns the gradient of w unchanged; other methods convert it."""
        return dw

    def begin_backward(self, needs_dx: bool) -> None:
        """Does nothing; other methods prepare their weights here."""

    def release(self) -> None:
        """Frees the images after the last chunk of a forward pass, unless the backward pass needs
        them: it does not if the im2col matrices of all images are kept."""
        if self.kept:
            self.x = self.xp.empty((0, *self.x.shape[1:]), self.x.dtype)
            self.padded = self._zeros(0, self.x.dtype)

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        """Writes the outputs y (n, h, w, O) of images x[s], as `ConvMethod.outputs` says."""
        if self._is_whole(y) and y.dtype == self.sums:
            self.forward(s, y.reshape(-1, y.shape[3]))
            epilogue.bias_relu(y, rows)
        else:
            z, view = self.room(len(y), self.sums)
            self.forward(s, z)
            epilogue.outputs(view, y, largest, rows, self.covers)

    def _is_whole(self, y: Array) -> bool:
        """True if y (n, h, w, O) has a place for each sum of the convolution, neither pooled nor
        cropped, so that the matrix product can write to y itself."""
        return self.f == 1 and y.shape[1:3] == self.covers

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """Computes gradients for images x[s], as `ConvMethod.gradients` says."""
        g = epilogue.masked(g, y, shared.db)
        dz = g.reshape(-1, g.shape[3])
        if not self._is_whole(g):
            dz, view = self.room(len(g), g.dtype)
            epilogue.spread(g, largest, view, self.covers)
        progress_hook.get()()
        self.backward(s, dz, shared.dx, shared.dw)

    def backward(self, s: slice, dz: Array, dx: Array | None, dw: Array | None) -> None:
        """Writes dx[s] and adds to dw from the gradient dz (T, O); either may be None."""
        w, dz = self._grouped(self.w.reshape(-1, self.w.shape[3])), self._grouped(dz)
        if dw is not None:
            total = self._grouped(dw.reshape(-1, dw.shape[3]))
            products_loop(self._columns(s).swapaxes(1, 2), dz, total, True)
        if dx is not None and self.pointwise:
            pixels = dx[s].reshape(dz.shape[0], -1, dx.shape[3])
            products_loop(dz, w.swapaxes(1, 2), pixels, False)
        elif dx is not None:
            gather_loop(self._overlap_add(w, dz, len(dx[s])), dx[s])

    def _overlap_add(self, w: Array, dz: Array, n: int) -> Array:
        """Returns the gradient of n images: computes the gradient of their columns, dz @ w.T, and
        adds that of each column to the pixels from which the column was gathered."""
        padded = self._zeros(n, self.sums)
        places = self._places(padded)
        outputs, kernel = places.shape[1:6], places.shape[6:]
        if self.narrow:
            dcols = self.xp.empty((self.groups, *kernel, *outputs), self.sums)
            products_loop(w, dz.swapaxes(1, 2), dcols.reshape(*w.shape[:2], -1), False)
            dcols = dcols.transpose(0, *range(4, 9), 1, 2, 3)
        else:
            dcols = self.xp.empty(places.shape, self.sums)
            products_loop(dz, w.swapaxes(1, 2), dcols.reshape(*dz.shape[:2], -1), False)
        overlap_loop(places, dcols)
        return self._cropped(padded)

    def _cropped(self, padded: Array) -> Array:
        """Returns padded images (n, Hp, Wp, C) without the padding: a view."""
        (_, H, W, _), (rows, columns) = self.x.shape, self.windows
        return padded[:, rows.before : rows.before + H, columns.before : columns.before + W]


# ---- images with few channels, such as those of a network's first layer, without columns


@kernel
def direct_outputs(
    x: Array,
    w: Array,
    y: Out,
    largest: Out | None,
    bias: Array | None,
    zero: Array | None,
    stride: int,
) -> None:
    """Writes y (n, h, w, O): padded images x (n, H, W, C) convolved by w (kh, kw, C, O), after 2x2
    max-pooling, bias and ReLU.

    `bias` and `zero` are those of `RowConstants`. `largest` receives the position of the maximum in
    each pooling window; None: no pooling. `stride` is that along both axes.
    """
    method = _im2col(x, w, stride, largest is not None)
    method.outputs(slice(0, len(x)), y, largest, RowConstants(bias, zero))


@kernel
def direct_gradients(
    x: Array,
    g: Array,
    y: Array | None,
    largest: Array | None,
    db: InOut | None,
    dw: InOut,
    stride: int,
) -> None:
    """Adds the gradients of weights and bias to dw and db, from the gradient g of the outputs y
    (None without ReLU), for padded images x (n, H, W, C); other arguments as in
    `direct_outputs`."""
    method = _im2col(x, dw, stride, largest is not None)
    method.gradients(slice(0, len(x)), g, y, largest, Gradients(None, dw, db))


def _im2col(x: Array, w: Array, stride: int, pool: bool) -> Im2col:
    rows, columns = (Window(k, stride) for k in w.shape[:2])
    return Im2col(x, w, (rows, columns), 1, pool, len(x))


class Direct(Im2col):
    """Multiplies rows of pixels in place, without copying them to columns, in compiled code for
    images with at most 4 channels. Padded images are kept for the backward pass."""

    narrow_up_to = 0  # channels are last

    @staticmethod
    def suits(x: Array, w: Array, windows: Windows, groups: int) -> bool:
        """True if the compiled kernel can convolve images x (N, H, W, C) by w (kh, kw, C, O) on the
        host: at most 4 channels, one group, equal strides, no dilation."""
        (rows, columns), (_, _, C, O) = windows, w.shape
        plain = groups == 1 and rows.stride == columns.stride
        few = C <= NARROW and O % 16 == 0 and types_of(x.dtype).sums == "float32"
        undilated = rows.dilation == columns.dilation == 1
        compiled = direct_outputs.compiled is not None and of(x).is_host
        return compiled and plain and few and undilated

    def outputs(self, s: slice, y: Array, largest: Array | None, rows: RowConstants) -> None:
        x = self.kept[s.start] = self._padded(s).copy()
        direct_outputs(x, self.w, y, largest, *rows, self.windows[0].stride)

    def gradients(
        self, s: slice, g: Array, y: Array | None, largest: Array | None, shared: Gradients
    ) -> None:
        """Computes gradients for images x[s]; those of weights and bias by the compiled kernel."""
        if shared.dw is not None or shared.db is not None:
            dw = self.new_dw() if shared.dw is None else shared.dw
            x = self.kept[s.start]
            direct_gradients(x, g, y, largest, shared.db, dw, self.windows[0].stride)
        if shared.dx is not None:
            super().gradients(s, g, y, largest, Gradients(shared.dx, None, None))

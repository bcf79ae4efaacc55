"""Convolution of images with few channels, such as a network's first one, without columns."""

from nnmpi.backend import Array, of
from nnmpi.kernels.epilogue import Gradients, Masks, RowConstants
from nnmpi.kernels.im2col import NARROW, Im2col
from nnmpi.kernels.window import Window, Windows
from nnmpi.native.table import kernel


@kernel
def direct_outputs(
    x: Array,
    w: Array,
    y: Array,
    left: Array | None,
    upper: Array | None,
    bias: Array | None,
    zero: Array | None,
    stride: int,
) -> None:
    """y (n, h, w, O) of padded images x (n, H, W, C) and w (kh, kw, C, O), after the epilogue."""
    method = _im2col(x, w, stride, left is not None)
    method.outputs(slice(0, len(x)), y, Masks(left, upper), RowConstants(bias, zero))


@kernel
def direct_gradients(
    x: Array,
    g: Array,
    y: Array | None,
    left: Array | None,
    upper: Array | None,
    db: Array | None,
    dw: Array,
    stride: int,
) -> None:
    """What is added to dw and db, from the gradient g of y."""
    method = _im2col(x, dw, stride, left is not None)
    method.gradients(slice(0, len(x)), g, y, Masks(left, upper), Gradients(None, dw, db))


def _im2col(x: Array, w: Array, stride: int, pool: bool) -> Im2col:
    rows, columns = (Window(k, stride) for k in w.shape[:2])
    return Im2col(x, w, (rows, columns), 1, pool, len(x))


class Direct(Im2col):
    """Products of rows of pixels as they lie in memory; padded images are kept, not columns."""

    narrow_up_to = 0  # channels are last

    @staticmethod
    def suits(x: Array, w: Array, windows: Windows, groups: int) -> bool:
        """Whether it is compiled for images x (N, H, W, C) and w (kh, kw, C, O)."""
        (rows, columns), (_, _, C, O) = windows, w.shape
        plain = groups == 1 and rows.stride == columns.stride
        few = C <= NARROW and O % 16 == 0 and x.dtype == "float32"
        undilated = rows.dilation == columns.dilation == 1
        compiled = direct_outputs.compiled is not None and of(x).is_host
        return compiled and plain and few and undilated

    def outputs(self, s: slice, y: Array, masks: Masks, rows: RowConstants) -> None:
        """The outputs y of images x[s]."""
        x = self.kept[s.start] = self._padded(s).copy()
        direct_outputs(x, self.w, y, *masks, *rows, self.windows[0].stride)

    def gradients(
        self, s: slice, g: Array, y: Array | None, masks: Masks, shared: Gradients
    ) -> None:
        """From the gradient g of y: write dx[s] and add to dw and db, those that are not None."""
        if shared.dw is not None or shared.db is not None:
            dw = self.new_dw() if shared.dw is None else shared.dw
            x = self.kept[s.start]
            direct_gradients(x, g, y, *masks, shared.db, dw, self.windows[0].stride)
        if shared.dx is not None:
            super().gradients(s, g, y, masks, Gradients(shared.dx, None, None))

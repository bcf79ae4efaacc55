"""Convolution and pooling of images cut by rows, as ops: the ordinary kernels between two halos.

x --Halo.fetch--> rows needed --kernel without padding--> y
dx <--Halo.give_back-- d <--its vjp-- g
"""

from collections.abc import Callable, Sequence
from typing import Any

from nnmpi.backend import Array, of, xp_of
from nnmpi.kernels import Result, conv
from nnmpi.kernels.bands import Bands
from nnmpi.kernels.window import Windows
from nnmpi.parallel.spatial.halo import Halo


def conv2d(x: Array, w: Array, b: Array | None, *, halo: Halo, shape: conv.Shape) -> Result:
    """This rank's rows of the convolution, then optional 2x2 max-pool and ReLU; w, b are whole."""
    xl, columns = x.transpose(0, 2, 3, 1), shape.windows[1]
    (n, _, W, C), (O, _, kh, kw) = xl.shape, w.shape
    within = slice(columns.before, columns.before + W)
    bare = _without_padding(shape.windows)
    row_bytes = columns.outputs(W) * (kh * kw * C + O) * x.itemsize
    bands = Bands.of(bare[0], shape.pool, n, halo.height, row_bytes, of(x).chunk_bytes)
    tall = bands.buffer(x, columns.padded(W), C)
    halo.fetch(xl, bands.samples(tall, halo.height)[:, :, within])
    images = bands.images(tall).transpose(0, 3, 1, 2)
    inner = conv.conv2d(images, w, b, shape._replace(windows=bare))
    prepare, (vjp_x, vjp_w, vjp_b) = inner.prepare, inner.vjps
    assert prepare is not None

    def prepare_bands(g: Array, needs: Sequence[bool]) -> Any:
        whole = bands.cotangent(g.transpose(0, 2, 3, 1))
        return prepare(whole.transpose(0, 3, 1, 2), needs)

    def vjp_rows(shared: Any, out: Array | None) -> Array:
        d = bands.gradient(vjp_x(shared, None).transpose(0, 2, 3, 1)[:, :, within])
        return halo.give_back(d).transpose(0, 3, 1, 2)

    y = bands.result(inner.value.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return Result(y, (vjp_rows, vjp_w, vjp_b), prepare_bands)


def pool2d(
    x: Array,
    *,
    kernel: Callable[[Array, Windows], Result],
    padding: float,
    windows: Windows,
    halo: Halo,
) -> Result:
    """This rank's rows of the pooling by a kernel; `padding` is the number around the image."""
    xl, columns, xp = x.transpose(0, 2, 3, 1), windows[1], xp_of(x)
    n, _, W, C = xl.shape
    within = slice(columns.before, columns.before + W)
    if halo.is_local and not columns.before:
        rows = xl[:, halo.needed[0] - halo.own[0] :][:, : halo.height]
    else:
        rows = xp.full((n, halo.height, columns.padded(W), C), padding, x.dtype)
        halo.fetch(xl, rows[:, :, within])
    inner = kernel(rows.transpose(0, 3, 1, 2), _without_padding(windows))

    def vjp(g: Array, out: Array | None) -> Array:
        d = inner.vjps[0](g, None).transpose(0, 2, 3, 1)
        return halo.give_back(d[:, :, within]).transpose(0, 3, 1, 2)

    return Result(inner.value, (vjp,))


def _without_padding(windows: Windows) -> Windows:
    """The windows of images that contain their padding."""
    rows, columns = (window._replace(before=0, after=0) for window in windows)
    return rows, columns

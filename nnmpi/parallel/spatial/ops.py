"""Convolution and pooling of images cut by rows, as ops: the ordinary kernels between two halos.

x --Halo.fetch--> rows needed --kernel without padding--> y
dx <--Halo.give_back-- d <--its vjp-- g
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from nnmpi.backend import Array, of, xp_of
from nnmpi.kernels import conv
from nnmpi.kernels.im2col import output_size
from nnmpi.kernels.result import Result
from nnmpi.parallel.spatial.bands import Bands
from nnmpi.parallel.spatial.halo import Halo
from nnmpi.parallel.spatial.window import Window


def conv2d(x: Array, w: Array, b: Array | None, *, halo: Halo, shape: conv.Shape) -> Result:
    """This rank's rows of the convolution, then optional 2x2 max-pool and ReLU; w, b are whole."""
    xl, p = x.transpose(0, 2, 3, 1), shape.padding
    n, _, W, C = xl.shape
    O, _, k, _ = w.shape
    window = Window(k, shape.stride)
    row_bytes = output_size(W, k, shape.stride, p) * (k * k * C + O) * x.itemsize
    bands = Bands.of(window, shape.pool, n, halo.height, row_bytes, of(x).chunk_bytes)
    tall = bands.buffer(x, W + 2 * p, C)
    halo.fetch(xl, bands.samples(tall, halo.height)[:, :, p : p + W])
    images = bands.images(tall).transpose(0, 3, 1, 2)
    inner = conv.conv2d(images, w, b, shape._replace(padding=0))
    prepare, (vjp_x, vjp_w, vjp_b) = inner.prepare, inner.vjps
    assert prepare is not None

    def prepare_bands(g: Array, needs: Sequence[bool]) -> Any:
        whole = bands.cotangent(g.transpose(0, 2, 3, 1))
        return prepare(whole.transpose(0, 3, 1, 2), needs)

    def vjp_rows(shared: Any, out: Array | None) -> Array:
        d = bands.gradient(vjp_x(shared, None).transpose(0, 2, 3, 1), p)
        return halo.give_back(d).transpose(0, 3, 1, 2)

    y = bands.result(inner.value.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return Result(y, (vjp_rows, vjp_w, vjp_b), prepare_bands)


class Pool(NamedTuple):
    """A pooling op without halo, and what padding is to it."""

    op: Callable[..., Result]
    padding: float


def pool2d(x: Array, *, pool: Pool, window: Window, halo: Halo) -> Result:
    """This rank's rows of the pooling."""
    xl, p, xp = x.transpose(0, 2, 3, 1), window.padding, xp_of(x)
    n, _, W, C = xl.shape
    if halo.is_local and not p:
        rows = xl[:, halo.needed[0] - halo.own[0] :][:, : halo.height]
    else:
        rows = xp.full((n, halo.height, W + 2 * p, C), pool.padding, x.dtype)
        halo.fetch(xl, rows[:, :, p : p + W])
    inner = pool.op(rows.transpose(0, 3, 1, 2), kernel=window.kernel, stride=window.stride)

    def vjp(g: Array, out: Array | None) -> Array:
        d = inner.vjps[0](g, None).transpose(0, 2, 3, 1)
        return halo.give_back(d[:, :, p : p + W]).transpose(0, 3, 1, 2)

    return Result(inner.value, (vjp,))

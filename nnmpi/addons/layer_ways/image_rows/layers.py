"""Spatial layers: image layers of which each rank computes some rows of each image, with whole
weights.

    x whole ──► own rows ──► layers, which exchange a halo where they need one ──► all-gather ──► y
    dx  ◄── all-gather ◄──                                                 ◄── own rows ◄── dy

Each rank computes the gradients of weights from its rows, and they are summed over the ranks once a
step (`replicas/bucket_sums.py`). Layers that treat each pixel alone, such as ReLU, need no
counterpart here. The ops are the ordinary kernels between two exchanges of halos:

    x --Halo.fetch--> rows needed --kernel without padding--> y
    dx <--Halo.add_back-- d <--its vjp-- g
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nnmpi import nn
from nnmpi.addons.layer_ways.image_rows.bands import Bands
from nnmpi.addons.layer_ways.image_rows.halo import Halo, windows_of
from nnmpi.arrays.backend import Array, of, xp_of
from nnmpi.arrays.kernels import Result, conv
from nnmpi.arrays.kernels.pool import avg_pool2d, max_pool2d
from nnmpi.arrays.kernels.window import Window, Windows
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops.conv import check_conv2d
from nnmpi.autograd.ops.linear import check_dtype, like_weight
from nnmpi.autograd.recording import recording
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm
from nnmpi.nn.passes import UNTRACKED, BatchStats
from nnmpi.parallel.tensor.ops import Bounds, gather, reduce, scatter
from nnmpi.parallel.tensor.specs import NestedStats
from nnmpi.parallel.tensor.ways import Way


class SpatialLayer(nn.Module):
    """The base class of layers of which each rank along tp computes some rows of each image: rank r
    has rows bounds[r] to bounds[r + 1] - 1 of the input.

    comm           the ranks that share an image
    gather_output  True if the output is all-gathered, so that each rank gets all rows
    """

    comm: Comm
    bounds: Bounds
    _way: Way
    gather_output: bool

    def forward(self, x: Any, relu: bool = False, pool: bool = False) -> Tensor:
        x, options = as_tensor(x), {"relu": relu, "pool": pool}
        if self._way.input is None:
            x = scatter(x, self.comm, self.bounds, 2)
        rows = self.window(pool).outputs(self.bounds[-1])
        y = self.of_rows(x, **{name: True for name, is_fused in options.items() if is_fused})
        return gather(y, self.comm, bounds(rows, self.comm.size), 2) if self.gather_output else y

    def of_rows(self, x: Tensor, *args: Any, **fused: Any) -> Tensor:
        """Returns this rank's rows of the output; `fused` ops run with the layer."""
        y: Tensor = super().forward(x, *args, **fused)
        return y

    def window(self, pool: bool = False) -> Window:
        """Returns the window along rows; with `pool` after a fused 2x2 pooling."""
        rows, _ = windows_of(vars(self))
        return rows.pooled() if pool else rows

    def halo(self, pool: bool = False) -> Halo:
        """Returns the Halo of this layer; with `pool`, of the layer and a fused 2x2 pooling."""
        return Halo.of(self.window(pool), self.bounds[-1], self.comm.size, self.comm.rank)


class SpatialConv2d(SpatialLayer, nn.Conv2d):
    """A Conv2d on rows of images; ranks exchange the rows that its windows need."""

    fuses_as = nn.Conv2d

    def of_rows(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        pair = windows_of(vars(self))
        shape = conv.ConvShape(pair, self.groups, relu, pool, self.algorithm, bool(recording.get()))
        images = (*x.shape[:2], self.bounds[-1], x.shape[3])
        # the op checks the type, which autocast may change
        check_conv2d(images, self.weight.dtype, self.weight, shape)
        options = {"halo": self.halo(pool), "comm": self.comm, "shape": shape}
        return apply(conv2d, x, self.weight, self.bias, **options)


class SpatialMaxPool2d(SpatialLayer, nn.MaxPool2d):
    """A MaxPool2d on rows of images; ranks exchange the rows that its windows need."""

    fuses_as = nn.MaxPool2d

    def of_rows(self, x: Tensor) -> Tensor:
        return _pooled(self, x, max_pool2d, float("-inf"))


class SpatialAvgPool2d(SpatialLayer, nn.AvgPool2d):
    """An AvgPool2d on some rows of images; ranks exchange the rows that its windows need. Zeros of
    the padding count in the average."""

    def of_rows(self, x: Tensor) -> Tensor:
        return _pooled(self, x, partial(avg_pool2d, count_include_pad=True), 0.0)


def _pooled(layer: SpatialLayer, x: Tensor, kernel: Callable[..., Any], padding: float) -> Tensor:
    """Returns a pooling's rows; `padding` is the value outside of the image."""
    options = {"halo": layer.halo(), "comm": layer.comm, "windows": windows_of(vars(layer))}
    return apply(pool2d, x, kernel=kernel, padding=padding, **options)


class SpatialBatchNorm2d(SpatialLayer, nn.BatchNorm2d):
    """A BatchNorm2d on some rows of images. Its statistics are merged over the rows of all ranks of
    `comm`, and then over the ranks that have other samples of the batch."""

    fuses_as = nn.BatchNorm2d

    def normalised(self, x: Tensor, batch_stats: BatchStats, relu: bool) -> Tensor:
        if batch_stats is not UNTRACKED:
            batch_stats = NestedStats(self.comm, batch_stats)
        return super().normalised(x, batch_stats, relu)


class SpatialDropout(SpatialLayer, nn.Dropout):
    """A Dropout on rows of images that drops what one rank would drop."""


class SpatialDropout2d(SpatialLayer, nn.Dropout2d):
    """A Dropout2d on some rows of images, which drops the same channels on all ranks."""


class SpatialPReLU(SpatialLayer, nn.PReLU):
    """A PReLU on rows of images, with the whole parameter on every rank."""


class SpatialMean(SpatialLayer, nn.AdaptiveAvgPool2d):
    """Computes the mean of each channel over whole images, (N, C, 1, 1), of which each rank has
    some rows: the ranks all-reduce their sums, N C elements."""

    def of_rows(self, x: Tensor) -> Tensor:
        pixels = self.bounds[-1] * x.shape[3]
        return reduce(x.sum(axis=(2, 3), keepdims=True) * (1 / pixels), self.comm)


# ---- ops


def conv2d(
    x: Array, w: Array, b: Array | None, *, halo: Halo, comm: Comm, shape: conv.ConvShape
) -> Result:
    """Returns this rank's rows of a convolution, with ReLU and 2x2 max pooling if `shape` asks for
    them; w and b are whole on every rank."""
    x = like_weight(x, w)
    check_dtype("conv2d", x.dtype, w)
    xl, columns = x.transpose(0, 2, 3, 1), shape.windows[1]
    (n, _, W, C), (O, _, kh, kw) = xl.shape, w.shape
    within = slice(columns.before, columns.before + W)
    bare = _without_padding(shape.windows)
    row_bytes = columns.outputs(W) * (kh * kw * C + O) * xl.itemsize
    bands = Bands.of(bare[0], shape.pool, n, halo.height, row_bytes, of(x).chunk_bytes)
    tall = bands.buffer(xl, columns.padded(W), C)
    halo.fetch(xl, bands.samples(tall, halo.height)[:, :, within], comm)
    images = bands.images(tall).transpose(0, 3, 1, 2)
    inner = conv.conv2d(images, w, b, shape._replace(windows=bare))
    prepare, (vjp_x, vjp_w, vjp_b) = inner.prepare, inner.vjps
    assert prepare is not None

    def prepare_bands(g: Array, needs: Sequence[bool]) -> Any:
        of_all_rows = bands.cotangent(g.transpose(0, 2, 3, 1))
        return prepare(of_all_rows.transpose(0, 3, 1, 2), needs)

    def vjp_rows(shared: Any, out: Array | None) -> Array:
        d = bands.gradient(vjp_x(shared, None).transpose(0, 2, 3, 1)[:, :, within])
        return halo.add_back(d, comm).transpose(0, 3, 1, 2)

    y = bands.result(inner.value.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return Result(y, (vjp_rows, vjp_w, vjp_b), prepare_bands)


def pool2d(
    x: Array,
    *,
    kernel: Callable[[Array, Windows], Result],
    padding: float,
    windows: Windows,
    halo: Halo,
    comm: Comm,
) -> Result:
    """Returns this rank's rows of a pooling by `kernel`; `padding` is the value of pixels
    outside."""
    xl, columns, xp = x.transpose(0, 2, 3, 1), windows[1], xp_of(x)
    n, _, W, C = xl.shape
    within = slice(columns.before, columns.before + W)
    has_all = halo.receives[halo.rank] == halo.needed
    if has_all and not any(halo.sent() + halo.received()) and not columns.before:
        # nothing to exchange and no padding: a view of x
        rows = xl[:, halo.needed[0] - halo.own[0] :][:, : halo.height]
    else:
        rows = xp.full((n, halo.height, columns.padded(W), C), padding, x.dtype)
        halo.fetch(xl, rows[:, :, within], comm)
    y, (of_rows,), *_ = kernel(rows.transpose(0, 3, 1, 2), _without_padding(windows))

    def vjp(g: Array, out: Array | None) -> Array:
        d = of_rows(g, None).transpose(0, 2, 3, 1)
        return halo.add_back(d[:, :, within], comm).transpose(0, 3, 1, 2)

    return Result(y, (vjp,))


def _without_padding(windows: Windows) -> Windows:
    """Returns the same windows with padding 0, for images that already contain their padding."""
    rows, columns = (window._replace(before=0, after=0) for window in windows)
    return rows, columns

"""Layers of images that are cut by rows over ranks: the ordinary ones, with a Comm.

Arguments, and names and shapes in the state dict, are those of the ordinary layers. Every rank has
whole copies of weights; their gradients are summed over the ranks, so the copies stay equal. Layers
that treat each pixel alone, such as ReLU, need no counterpart here.

Their ops are the ordinary kernels between two halos:

    x --Halo.fetch--> rows needed --kernel without padding--> y
    dx <--Halo.give_back-- d <--its vjp-- g
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nnmpi import nn
from nnmpi.autograd import Tensor, apply, as_tensor
from nnmpi.autograd.ops.conv import check_conv2d
from nnmpi.autograd.ops.norm import Moments
from nnmpi.autograd.ops.pool import check_window
from nnmpi.autograd.recording import recording
from nnmpi.backend import Array, of, xp_of
from nnmpi.comm import Comm
from nnmpi.kernels import Result, conv
from nnmpi.kernels.bands import Bands
from nnmpi.kernels.pool import avg_pool2d, max_pool2d
from nnmpi.kernels.window import Windows, pair, windows
from nnmpi.nn.layers.activations import ELEMENTWISE
from nnmpi.nn.passes import BatchStats
from nnmpi.nn.sequential import forget_steps, only_runs_layers
from nnmpi.parallel.batch_stats import Synced
from nnmpi.parallel.rewriting import become
from nnmpi.parallel.standalone.halo import Halo, ImageRows, gather_rows
from nnmpi.parallel.tensor.ops import copy, reduce


class Spatial(nn.Module):
    """The base of these layers: the arguments of the ordinary one, and a Comm."""

    def __init__(self, *arguments: Any, comm: Comm, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.comm = comm
        _check_windows(type(self).__name__, self)


class SpatialConv2d(Spatial, nn.Conv2d):
    """Convolution; the rows that its windows need of other ranks are exchanged."""

    fuses_as = nn.Conv2d

    def forward(self, x: Tensor, relu: bool = False, pool: bool = False) -> Tensor:
        x = as_tensor(x)
        both = windows(self.kernel_size, self.stride, self.padding, self.dilation)
        shape = conv.ConvShape(both, self.groups, relu, pool, self.algorithm, bool(recording.get()))
        rows = ImageRows.of("SpatialConv2d", x, self.comm)
        check_conv2d(rows.shape, x.dtype, self.weight, shape)
        return apply(
            conv2d,
            x,
            copy(self.weight, self.comm),
            None if self.bias is None else copy(self.bias, self.comm),
            halo=Halo.of("SpatialConv2d", rows, both[0].pooled() if pool else both[0]),
            shape=shape,
        )


class SpatialMaxPool2d(Spatial, nn.MaxPool2d):
    """The maximum of each window."""

    fuses_as = nn.MaxPool2d

    def forward(self, x: Tensor) -> Tensor:
        both = windows(self.kernel_size, self.stride, self.padding, self.dilation)
        return _pooled(self, x, both, max_pool2d, float("-inf"))


class SpatialAvgPool2d(Spatial, nn.AvgPool2d):
    """The mean of each window, zeros of the padding included."""

    def forward(self, x: Tensor) -> Tensor:
        both = windows(self.kernel_size, self.stride, self.padding)
        return _pooled(self, x, both, partial(avg_pool2d, count_include_pad=True), 0.0)


def _pooled(
    layer: Spatial, x: Tensor, both: Windows, kernel: Callable[..., Any], padding: float
) -> Tensor:
    """x pooled by a kernel, to which the padding is this number."""
    name = type(layer).__name__
    x = as_tensor(x)
    rows = ImageRows.of(name, x, layer.comm)
    check_window(name, rows.shape, both)
    halo = Halo.of(name, rows, both[0])
    return apply(pool2d, x, kernel=kernel, padding=padding, windows=both, halo=halo)


class SpatialBatchNorm2d(Spatial, nn.BatchNorm2d):
    """Batch normalisation with statistics over the rows of all ranks."""

    def normalised(
        self, x: Tensor, weight: Tensor | None, bias: Tensor | None, batch_stats: BatchStats
    ) -> Tensor:
        weight, bias = (None if t is None else copy(t, self.comm) for t in (weight, bias))
        return super().normalised(x, weight, bias, _OverRows(self.comm, batch_stats))


class _OverRows:
    """`BatchStats` over the rows of all ranks, then over what `samples` joins: other samples."""

    def __init__(self, comm: Comm, samples: BatchStats) -> None:
        self._rows, self._samples = Synced(comm), samples

    def moments(self, local: Moments, track: Callable[[Moments], None]) -> Moments:
        # running statistics follow the whole batch, so the moments of these samples are not tracked
        of_samples = self._rows.moments(local, lambda moments: None)
        return self._samples.moments(of_samples, track)

    def sum(self, sums: Array) -> Array:
        return self._samples.sum(self._rows.sum(sums))


class SpatialFlatten(Spatial, nn.Flatten):
    """The rows of all ranks put together, then flattened: what follows is the same on all ranks.

    Each rank then holds whole images of features. Where these are too large, use SpatialMean.
    """

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(gather_rows(as_tensor(x), self.comm))


class SpatialMean(Spatial):
    """The mean of each channel over the whole image, (N, C), on all ranks: global average pooling.

    N * C numbers are summed over the ranks.
    """

    def forward(self, x: Tensor) -> Tensor:
        x = as_tensor(x)
        _, _, height, width = ImageRows.of("SpatialMean", x, self.comm).shape
        return reduce(x.sum(axis=(2, 3)) * (1 / (height * width)), self.comm)


SPATIAL: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: SpatialConv2d,
    nn.MaxPool2d: SpatialMaxPool2d,
    nn.AvgPool2d: SpatialAvgPool2d,
    nn.BatchNorm2d: SpatialBatchNorm2d,
    nn.Flatten: SpatialFlatten,
}
"""The spatial class of each layer that needs something of other ranks."""


def parallelize(model: nn.Sequential, comm: Comm) -> nn.Sequential:
    """The model itself, which now takes rows of images: each rank brings its own (`scatter_rows`).

    Up to the first Flatten or SpatialMean, layers get the spatial class, and keep all that they
    have; from there on all ranks compute the same. Every rank calls it, with equal models.
    """
    if not only_runs_layers(model):
        raise ValueError(
            f"parallelize: {type(model).__name__} is no nn.Sequential, so the order of its layers "
            "is not known; build it from the layers of nnmpi.parallel.standalone.spatial"
        )
    for layer in list(_taking_rows(model)):
        if type(layer) in SPATIAL:  # once, if it is in two places
            become(layer, SPATIAL[type(layer)], {"comm": comm})
    forget_steps(model)
    return model


def _taking_rows(model: nn.Sequential) -> Iterator[Any]:
    """The layers that get rows; raises ValueError for one that needs whole images."""
    for path, layer in model.named_modules():
        if only_runs_layers(layer):
            continue
        if isinstance(layer, SpatialMean):
            return
        what = f"parallelize: layer {path} is {layer!r}"
        if type(layer) not in (*SPATIAL, *ELEMENTWISE, nn.Dropout2d):
            raise ValueError(
                f"{what}, which cannot take rows of images; put it behind a Flatten or a "
                "SpatialMean, or build the model from the layers of "
                "nnmpi.parallel.standalone.spatial and gather_rows"
            )
        _check_windows(what, layer)
        yield layer
        if isinstance(layer, nn.Flatten):
            return


def _check_windows(what: str, layer: nn.Module) -> None:
    """Raises ValueError if a window at the edge is unlike one inside, with padding around."""
    options = vars(layer)
    excludes = not options.get("count_include_pad", True) and pair(options["padding"]) != (0, 0)
    others = options.get("ceil_mode", False) or options.get("return_indices", False) or excludes
    if others or options.get("padding_mode", "zeros") != "zeros":
        raise ValueError(
            f"{what}: layers of rows of images have ceil_mode=False, count_include_pad=True, "
            "return_indices=False and padding_mode='zeros' only; leave these options out, or put "
            "the layer behind a Flatten or a SpatialMean"
        )


# ---- ops


def conv2d(x: Array, w: Array, b: Array | None, *, halo: Halo, shape: conv.ConvShape) -> Result:
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
    y, (of_rows,), *_ = kernel(rows.transpose(0, 3, 1, 2), _without_padding(windows))

    def vjp(g: Array, out: Array | None) -> Array:
        d = of_rows(g, None).transpose(0, 2, 3, 1)
        return halo.give_back(d[:, :, within]).transpose(0, 3, 1, 2)

    return Result(y, (vjp,))


def _without_padding(windows: Windows) -> Windows:
    """The windows of images that contain their padding."""
    rows, columns = (window._replace(before=0, after=0) for window in windows)
    return rows, columns

"""What holds for images cut by rows, on any transport: functions of a Comm."""

from collections.abc import Callable
from itertools import product
from typing import Any, NamedTuple

import numpy as np

import nnmpi
from nnmpi import nn, optim
from nnmpi.autograd import Tensor
from nnmpi.autograd.check import directional_error
from nnmpi.backend import CPU, Backend, to_host
from nnmpi.comm import Comm
from nnmpi.nn.passes import Pass, current_pass
from nnmpi.parallel.standalone import halo, spatial

CLOSE = 1e-12  # relative, in float64


class Seen(NamedTuple):
    """A result, whole, and the gradients of the input, whole, and of all parameters."""

    y: np.ndarray
    dx: np.ndarray
    grads: list[np.ndarray]


def image(n: int, channels: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """A batch of images, channels last in memory."""
    rng = np.random.default_rng((seed, n, channels, height, width))
    return rng.standard_normal((n, height, width, channels)).transpose(0, 3, 1, 2)


def seen(f: Callable[[Tensor], Tensor], model: nn.Module, x: np.ndarray) -> Seen:
    """What f computes of x, and the gradients of a sum with random weights."""
    leaf = Tensor(x, requires_grad=True)
    y = f(leaf)
    y.backward(np.random.default_rng(1).standard_normal(y.shape))
    assert leaf.grad is not None
    grads = [np.array(p.grad) for p in model.parameters()]
    return Seen(y.data, leaf.grad, grads)


def same(got: Seen, want: Seen, what: object, close: float = CLOSE) -> None:
    for a, b in zip((got.y, got.dx, *got.grads), (want.y, want.dx, *want.grads), strict=True):
        assert a.shape == b.shape, what
        np.testing.assert_allclose(a, b, rtol=0, atol=close * max(1, np.abs(b).max()), err_msg=what)


def compare(
    comm: Comm, layer: nn.Module, model: nn.Module, x: np.ndarray, what: str, **fused: bool
) -> None:
    """A spatial layer beside the ordinary one, with equal weights, between scatter and gather."""
    model.load_state_dict(layer.state_dict())

    def cut(whole: Tensor) -> Tensor:
        rows = layer(halo.scatter_rows(whole, comm), **fused)
        return halo.gather_rows(rows, comm)

    layer.zero_grad()
    want = seen(lambda t: model(t, **fused), model, x)
    same(seen(cut, layer, x), want, f"{what} on {comm.size} ranks")


def convolutions_equal_one_rank(comm: Comm, *heights: int) -> None:
    """Kernels, strides and paddings; parts as thin as one row, and heights that do not divide."""
    for k, s, p in product((1, 3, 5, 7), (1, 2, 3), (0, 1, 2, 3)):
        for height in heights or (comm.size, 11, 14):
            if (height + 2 * p - k) // s + 1 < comm.size:
                continue
            layer = spatial.SpatialConv2d(3, 4, k, s, p, comm=comm).to("float64")
            twin = nn.Conv2d(3, 4, k, s, p).to("float64")
            compare(comm, layer, twin, image(2, 3, height, 8), f"k={k} s={s} p={p} H={height}")


OPTIONS: list[dict[str, Any]] = [
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    {"kernel_size": (2, 5), "stride": (1, 2), "padding": (0, 3), "groups": 2},
    {"kernel_size": (3, 1), "padding": (2, 0), "dilation": (2, 3)},
    {"kernel_size": (4, 2), "padding": "same", "groups": 4},
    {"kernel_size": 2, "padding": "same", "dilation": 3, "bias": False},
]


def options_of_convolutions_equal_one_rank(comm: Comm) -> None:
    """Tuples, dilation, groups and the uneven padding of "same"; with a pool in the same op too."""
    for options, pool in product(OPTIONS, (False, True)):
        layer = spatial.SpatialConv2d(4, 4, **options, comm=comm).to("float64")
        twin = nn.Conv2d(4, 4, **options).to("float64")
        x = image(2, 4, 6 * comm.size + 1, 8)
        compare(comm, layer, twin, x, str(options), relu=True, pool=pool)


def fused_convolutions_equal_one_rank(comm: Comm, *heights: int) -> None:
    """With ReLU and a 2x2 pool in the same op: what is cut are the rows of the pool."""
    windows = [(3, 1, 1, "auto"), (5, 1, 0, "auto"), (3, 2, 1, "auto"), (1, 1, 0, "auto")]
    windows += [(3, 1, 1, "winograd2"), (3, 1, 0, "winograd4")]
    for (k, s, p, algorithm), pool in product(windows, (False, True)):
        for height in heights or (4 * comm.size + 3, 8 * comm.size + 6):
            options = {"bias": False, "algorithm": algorithm}
            layer = spatial.SpatialConv2d(8, 3, k, s, p, **options, comm=comm).to("float64")
            twin = nn.Conv2d(8, 3, k, s, p, **options).to("float64")
            what = f"k={k} s={s} p={p} {algorithm} H={height} pool={pool}"
            compare(comm, layer, twin, image(3, 8, height, 9), what, relu=True, pool=pool)


def pools_equal_one_rank(comm: Comm) -> None:
    """Equal numbers included, of which the first has the gradient."""
    kinds = [(spatial.SpatialMaxPool2d, nn.MaxPool2d), (spatial.SpatialAvgPool2d, nn.AvgPool2d)]
    windows = [(2, None, 0), (3, 2, 1), (3, 1, 1), (2, 3, 1), (5, 2, 2), (3, 3, 0)]
    for (cut, whole), (k, s, p), height in product(kinds, windows, (comm.size, 9, 16)):
        if (height + 2 * p - k) // (s or k) + 1 >= comm.size and height + 2 * p >= k:
            x = np.round(image(2, 3, height, 7))
            what = f"{whole.__name__} k={k} s={s} p={p} H={height}"
            compare(comm, cut(k, s, p, comm=comm), whole(k, s, p), x, what)
    x = np.round(image(2, 3, 4 * comm.size, 7))
    uneven = ((3, 2), (2, 3), (1, 0))
    for cut, whole in kinds:
        compare(comm, cut(*uneven, comm=comm), whole(*uneven), x, f"{whole.__name__} {uneven}")
    dilated = ((2, 3), 2, (0, 1), (3, 2))
    compare(comm, spatial.SpatialMaxPool2d(*dilated, comm=comm), nn.MaxPool2d(*dilated), x, "")


def gradients_are_differences(comm: Comm) -> None:
    """Of convolution, fused or not, pools, BatchNorm and the mean, in float64."""
    layers: list[nn.Module] = [
        spatial.SpatialConv2d(2, 3, 3, 1, 1, comm=comm),
        spatial.SpatialAvgPool2d(3, 2, 1, comm=comm),
        spatial.SpatialMaxPool2d(3, 2, 1, comm=comm),
        spatial.SpatialBatchNorm2d(2, comm=comm),
        spatial.SpatialMean(comm=comm),
    ]
    for layer in layers:
        layer.to("float64")
        weights = [p.data.copy() for p in layer.parameters()]

        def f(x: Tensor, *values: Tensor, layer: nn.Module = layer) -> Tensor:
            for (name, _), value in zip(list(layer.named_parameters()), values, strict=True):
                object.__setattr__(layer, name, value)
            y = layer(halo.scatter_rows(x, comm))
            return y if isinstance(layer, spatial.SpatialMean) else halo.gather_rows(y, comm)

        x = image(2, 2, 2 * comm.size + 3, 6)
        assert directional_error(f, x, *weights) < 1e-6, layer


def any_cut_of_the_rows_is_taken(comm: Comm) -> None:
    """Uneven ones too, and ranks without rows: the outputs are cut evenly, whatever came in."""
    height = 2 * comm.size + 1
    x = image(2, 3, height, 5)
    weight, reference = nn.Conv2d(3, 4, 3, 1, 1), None
    for seed in range(4):
        ends = np.sort(np.random.default_rng(seed).integers(0, height + 1, comm.size - 1))
        bounds = [0, *ends.tolist(), height]
        start, stop = bounds[comm.rank : comm.rank + 2]
        layer = spatial.SpatialConv2d(3, 4, 3, 1, 1, comm=comm).to("float64")
        layer.load_state_dict(weight.state_dict())
        rows = Tensor(x[:, :, start:stop], requires_grad=True)
        y = layer(rows)
        wanted = halo.row_bounds(height, comm.size)
        assert y.shape[2] == wanted[comm.rank + 1] - wanted[comm.rank]
        whole = halo.gather_rows(y, comm)
        whole.backward(image(2, 4, height, 5))
        dx = halo.gather_rows(Tensor(rows.grad), comm).data
        reference = reference or (whole.data, dx)
        np.testing.assert_allclose(whole.data, reference[0], atol=CLOSE)
        np.testing.assert_allclose(dx, reference[1], atol=CLOSE)


def backward_in_halves_has_the_same_bits(comm: Comm) -> None:
    """The gradient of the input first, those of weights later."""
    x = image(1, 3, 3 * comm.size, 6)
    bounds = halo.row_bounds(x.shape[2], comm.size)
    grads = []
    for halves in (False, True):
        with nnmpi.seeded(3):
            layers = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        model = spatial.parallelize(layers, comm).to("float64")
        leaf = Tensor(x[:, :, bounds[comm.rank] : bounds[comm.rank + 1]], requires_grad=True)
        y = model(leaf)
        rest = y.backward(np.cos(y.data), until=leaf if halves else None)
        if rest is not None:
            rest.finish()
        grads.append([leaf.grad, *(p.grad.copy() for p in model.parameters())])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_array_equal(a, b)


def cnn(rows: int) -> nn.Sequential:
    """Two blocks, one of which is nested, a strided convolution, and a head for so many rows."""
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU()),
        nn.Sequential(nn.MaxPool2d(3, 2, 1), nn.Conv2d(6, 5, 5, padding=2), nn.Tanh()),
        *(nn.Dropout2d(0.2), nn.ELU(0.5), nn.Softplus(2)),
        *(nn.Conv2d(5, 4, 3, stride=2, padding=1), nn.ReLU(), nn.AvgPool2d(2)),
        *(nn.Flatten(), nn.Dropout(0.2), nn.Linear(12 * rows, 3)),
    )


def train(
    model: nn.Sequential,
    height: int,
    take: Callable[[Tensor], Tensor],
    check: Callable[[], None],
    on: Backend = CPU,
) -> None:
    """Ten steps with Adam."""
    rng = np.random.default_rng(5)
    opt, loss_of = optim.Adam(model.parameters(), lr=0.01), nn.CrossEntropyLoss()
    for step in range(10):
        x, labels = image(4, 2, height, 27, seed=step), rng.integers(0, 3, 4)
        loss = loss_of(model(take(Tensor(on.asarray(x)))), labels)
        opt.zero_grad()
        loss.backward()
        opt.step()
        check()


def training_equals_one_rank(comm: Comm, on: Backend = CPU) -> None:
    """After 10 steps within 1e-10, and the ranks have equal bits after each."""
    height = 8 * comm.size - 3
    with nnmpi.seeded(1):
        one = cnn(comm.size).to("float64")
    with nnmpi.seeded(1):
        model = spatial.parallelize(cnn(comm.size), comm).to("float64", on)
    assert list(model.state_dict()) == list(one.state_dict())

    def equal_bits() -> None:
        bits = np.concatenate([a.reshape(-1).view(np.uint8) for a in model.state_dict().values()])
        theirs = bits.copy()
        comm.broadcast(theirs)
        np.testing.assert_array_equal(bits, theirs)

    train(one, height, lambda x: x, lambda: None)
    train(model, height, lambda x: halo.scatter_rows(x, comm), equal_bits, on)
    state = model.state_dict()
    for name, want in one.state_dict().items():
        assert np.abs(state[name] - want).max() <= 1e-10 * np.abs(want).max(), name
    model.eval(), one.eval()
    x = image(2, 2, height, 27)
    with nnmpi.no_grad():
        scores = model(halo.scatter_rows(Tensor(on.asarray(x)), comm))
        got, want = to_host(scores.data), one(Tensor(x)).data
    np.testing.assert_allclose(got, want, atol=1e-10 * np.abs(want).max())


def statistics_join_rows_and_samples(comm: Comm) -> None:
    """BatchNorm joins the rows first, then what the pass says about other samples."""
    layer = spatial.SpatialBatchNorm2d(3, comm=comm).to("float64")
    twin = nn.BatchNorm2d(3).to("float64")
    tracked = []

    class Doubled:
        """Another group of ranks with the same samples."""

        def moments(self, local, track):  # type: ignore[no-untyped-def]
            tracked.append(local.n)
            whole = local._replace(n=2 * local.n, m2=2 * local.m2)
            track(whole)
            return whole

        def sum(self, sums):  # type: ignore[no-untyped-def]
            return 2 * sums

    token = current_pass.set(Pass(0, None, Doubled()))
    try:
        compare(comm, layer, twin, image(2, 3, 3 * comm.size + 1, 4), "BatchNorm over dp")
    finally:
        current_pass.reset(token)
    assert tracked == [2 * 4 * (3 * comm.size + 1)] * 2
    np.testing.assert_allclose(layer.running_var, twin.running_var, atol=CLOSE)

"""What holds for images that are cut by rows, on any transport: functions of a Comm."""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from helpers.once import once
from helpers.sample import one_in
from helpers.training.pipelined import Options, digits

import nnmpi
from nnmpi import nn
from nnmpi.autograd import Tensor
from nnmpi.comm import Comm
from nnmpi.data import Dataset, Split
from nnmpi.nn.models import cifar_cnn, mnist_cnn
from nnmpi.parallel.tensor.parallelize import parallelize

CLOSE = 1e-12  # relative, in float64


class Seen(NamedTuple):
    """A result, the gradient of the input, and those of all parameters."""

    y: np.ndarray
    dx: np.ndarray
    grads: list[np.ndarray]


def image(n: int, channels: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    """A batch of images, channels last in memory."""
    rng = np.random.default_rng((seed, n, channels, height, width))
    return rng.standard_normal((n, height, width, channels)).transpose(0, 3, 1, 2)


def seen(model: nn.Module, x: np.ndarray) -> Seen:
    """What a model makes of x, and the gradients of a sum with random weights."""
    leaf = Tensor(x, requires_grad=True)
    y = model(leaf)
    y.backward(np.random.default_rng(1).standard_normal(y.shape))
    return Seen(y.array, leaf.grad_array, [np.array(p.grad_array) for p in model.parameters()])


def compare(comm: Comm, make: Callable[[], list[nn.Module]], x: np.ndarray, what: str) -> None:
    """Layers by rows beside one rank, between images that are whole."""
    found = []
    for is_cut in (True, False):
        with nnmpi.seeded(2):
            model = nn.Sequential(*make()).to("float64")
        if is_cut:
            given = parallelize(model, comm, x, whole_output=True, ways={"?": "spatial"})
            assert all(layer.how == "spatial" for layer in given.layers), what
        one = seen(model, x)
        for grad in one.grads if is_cut else ():
            comm.all_reduce(grad)
        found.append(one)
    got, want = found
    for a, b in zip((got.y, got.dx, *got.grads), (want.y, want.dx, *want.grads), strict=True):
        assert a.shape == b.shape, what
        close = CLOSE * max(1, np.abs(b).max())
        np.testing.assert_allclose(a, b, rtol=0, atol=close, err_msg=f"{what} on {comm.size} ranks")


def convolutions_equal_one_rank(comm: Comm, *heights: int) -> None:
    """Kernels, strides and paddings; parts as thin as one row, and heights that do not divide."""
    for k, s, p in one_in(2, product((1, 3, 7), (1, 2, 3), (0, 1, 3)), "windows"):
        for height in heights or (comm.size, 13):
            if (height + 2 * p - k) // s + 1 >= comm.size:
                make = partial(of_one, nn.Conv2d, 3, 4, k, s, p)
                compare(comm, make, image(2, 3, height, 8), f"k={k} s={s} p={p} H={height}")


def of_one(kind: Callable[..., nn.Module], *arguments: Any, **options: Any) -> list[nn.Module]:
    return [kind(*arguments, **options)]


OPTIONS: list[dict[str, Any]] = [
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0)},
    {"kernel_size": (2, 5), "stride": (1, 2), "padding": (0, 3), "groups": 2},
    {"kernel_size": (3, 1), "padding": (2, 0), "dilation": (2, 3)},
    {"kernel_size": (4, 2), "padding": "same", "groups": 4},
    {"kernel_size": 2, "padding": "same", "dilation": 3, "bias": False},
]


def options_of_convolutions_equal_one_rank(comm: Comm) -> None:
    """Tuples, dilation, groups and the uneven padding of "same"."""
    for options in OPTIONS:
        x = image(2, 4, 6 * comm.size + 1, 8)
        compare(comm, partial(of_one, nn.Conv2d, 4, 4, **options), x, str(options))


def fused_convolutions_equal_one_rank(comm: Comm, *heights: int) -> None:
    """With ReLU and a 2x2 pool in the same op: what is cut are the rows of the pool."""
    windows = [(3, 1, 1, "auto"), (5, 1, 0, "auto"), (3, 2, 1, "auto"), (1, 1, 0, "auto")]
    windows += [(3, 1, 1, "winograd2"), (3, 1, 0, "winograd4")]
    for k, s, p, algorithm in one_in(2, windows, "fused"):
        for height in heights or (4 * comm.size + 3,):
            options = {"bias": False, "algorithm": algorithm}

            def make(options: Any = options, sizes: tuple[int, ...] = (k, s, p)) -> list[nn.Module]:
                return [nn.Conv2d(8, 3, *sizes, **options), nn.ReLU(), nn.MaxPool2d(2)]

            compare(comm, make, image(3, 8, height, 9), f"k={k} s={s} p={p} {algorithm} H={height}")


def between(layer: Callable[[], nn.Module]) -> list[nn.Module]:
    """A layer that takes rows, and gives them."""
    return [nn.Conv2d(3, 3, 1, bias=False), layer(), nn.Conv2d(3, 3, 1, bias=False)]


def other_layers_equal_one_rank(comm: Comm) -> None:
    """Pools, with equal numbers of which the first has the gradient; what has statistics, slopes
    or a mask; a mean of what is left."""
    windows: list[Sequence[Any]] = [(2, None, 0), (3, 2, 1), (3, 1, 1), (2, 3, 1), (5, 2, 2)]
    windows += [((3, 2), (2, 3), (1, 0))]
    layers: list[Callable[[], nn.Module]] = [
        partial(kind, *sizes) for kind in (nn.MaxPool2d, nn.AvgPool2d) for sizes in windows
    ]
    layers += [partial(nn.MaxPool2d, (2, 3), 2, (0, 1), (3, 2)), partial(nn.BatchNorm2d, 3)]
    layers += [partial(nn.PReLU, 3), partial(nn.Dropout2d, 0.4), partial(nn.Dropout, 0.4)]
    layers += [partial(nn.Softplus, 2)]
    for layer in one_in(2, layers, "others"):
        x = np.round(image(2, 3, 4 * comm.size + 3, 7))
        compare(comm, partial(between, layer), x, repr(layer()))
    conv = partial(nn.Conv2d, 3, 4, 3)
    mean = partial(nn.AdaptiveAvgPool2d, 1)
    compare(comm, lambda: [conv(), mean()], image(2, 3, comm.size + 2, 7), "mean")


def backward_in_halves_has_the_same_bits(comm: Comm) -> None:
    """The gradient of the input first, those of weights later."""
    x, grads = image(1, 3, 3 * comm.size, 6), []
    for halves in (False, True):
        with nnmpi.seeded(3):
            layers = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()
        model = nn.Sequential(*layers).to("float64")
        parallelize(model, comm, x, whole_output=True, ways={"?": "spatial"})
        leaf = Tensor(x, requires_grad=True)
        y = model(leaf)
        rest = y.backward(np.cos(y.array), until=leaf if halves else None)
        if rest is not None:
            rest.finish()
        grads.append([leaf.grad_array, *(p.grad_array.copy() for p in model.parameters())])
    for a, b in zip(*grads, strict=True):
        np.testing.assert_array_equal(a, b)


# ---- runs


def odd_cnn() -> nn.Sequential:
    """Of digits, 8x8: heights that do not divide, a stride, windows that overlap, and a mean."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 2, bias=False), nn.BatchNorm2d(6), nn.ReLU(), nn.AvgPool2d(3, 1, 1)),
        nn.Sequential(nn.Conv2d(6, 5, 5, padding=2), nn.PReLU(), nn.Dropout2d(0.2)),
        *(nn.Conv2d(5, 8, 3, 2, 2), nn.GroupNorm(2, 8), nn.Tanh(), nn.Dropout(0.2)),
        *(nn.Conv2d(8, 9, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(9, 10),
    )


@once
def images(*sample: int) -> Dataset:
    """A few of such a shape, with labels."""
    draws = np.random.default_rng(sample)

    def some(n: int) -> Split:
        x = draws.standard_normal((n, *sample)).astype(np.float32)
        return Split(x, draws.integers(0, 10, n))

    return digits()._replace(train=some(19), test=some(5))


PLAIN: Options = {"optimizer": "adam", "weight_decay": 0.01, "clip_norm": 0.5}
FEW: Options = {**PLAIN, "batch_size": 4}
CNNS: dict[str, Options] = {
    "odd cnn": {**PLAIN, "build": odd_cnn, "given": digits},
    "mnist-cnn": {**FEW, "build": mnist_cnn, "given": partial(images, 1, 28, 28)},
    "cifar-cnn": {**FEW, "build": cifar_cnn, "given": partial(images, 3, 32, 32)},
}
"""Ten steps of each."""

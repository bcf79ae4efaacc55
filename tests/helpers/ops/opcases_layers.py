"""Test cases of ops: softmax, normalisation, convolution and pooling."""

from itertools import cycle, product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Draw, Op, Oracle, label, of_torch

from nnmpi.arrays.kernels.window import Window
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import conv, lookup, norm, pool, softmax

EPS = 1e-5


def _softmaxes() -> dict[str, Case]:
    cases, huge = {}, np.array([[1e4, -1e4, 9999.0], [-700.0, -701.0, -702.0]])
    tries = ((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((4,), 0), ((3, 1), 1), ((0, 3), 1)
    for op in (softmax.softmax, softmax.log_softmax):
        name, oracle = op.__name__, of_torch(op.__name__)
        for sizes, axis in tries:
            cases[f"{name} {label(sizes)} {axis}"] = Case(op, (sizes,), oracle, {"axis": axis})
        cases[f"{name} of huge numbers"] = Case(op, (huge,), oracle, {"axis": 1}, smooth=False)
    return cases


def channels_last(*sizes: int) -> Draw:
    """Images (N, C, H, W) with memory order (N, H, W, C)."""
    n, c, h, w = sizes
    return lambda rng: rng.standard_normal((n, h, w, c)).transpose(0, 3, 1, 2)


def _of_the_batch(op: Op, x: Any, w: Any, b: Any, eps: float, relu: bool = False) -> Tensor:
    """Batch normalisation in training, with the statistics of x."""
    n, mean, m2 = norm.moments(x.array if isinstance(x, Tensor) else x)
    return apply(op, x, w, b, mean=mean, var=m2 / n, n=n, eps=eps, relu=relu)


def _norms() -> dict[str, Case]:
    def train(t: Any, x: Any, w: Any, b: Any, eps: float, relu: bool = False) -> Any:
        y = t.nn.functional.batch_norm(x, None, None, w, b, training=True, eps=eps)
        return t.relu(y) if relu else y

    def evaluate(t: Any, x: Any, w: Any, b: Any, mean: Any, var: Any, n: int, eps: float) -> Any:
        mean, var = t.as_tensor(mean), t.as_tensor(var)
        return t.nn.functional.batch_norm(x, mean, var, w, b, eps=eps)

    cases = {}
    known = {"mean": np.array([0.1, -0.2, 0.3]), "var": np.array([0.5, 1.0, 2.0]), "n": 0}
    inputs: dict[str, Any] = {
        "rows": (6, 3),
        "sequences": (4, 3, 5),
        "images": (2, 3, 4, 5),
        "images channels last": channels_last(2, 3, 5, 4),
    }
    affine = ("", (3,), (3,)), (" without w and b", None, None)
    ways: dict[str, dict[str, Any]] = {"of the batch": {}, "and ReLU": {"relu": True}}
    for (name, x), (how, w, b) in product(inputs.items(), affine):
        args = (x, w, b)
        for of, options in ways.items():
            cases[f"batch_norm {of}, {name}{how}"] = Case(
                norm.batch_norm, args, train, {"eps": EPS, **options}, _of_the_batch
            )
        cases[f"batch_norm of known statistics, {name}{how}"] = Case(
            norm.batch_norm, args, evaluate, {**known, "eps": EPS}
        )
    return cases


def _norms_of_samples() -> dict[str, Case]:
    def layer(t: Any, x: Any, w: Any, b: Any, shape: Any, eps: float) -> Any:
        return t.nn.functional.layer_norm(x, shape, w, b, eps)

    def root(t: Any, x: Any, w: Any, shape: Any, eps: float) -> Any:
        return t.nn.functional.rms_norm(x, shape, w, eps)

    def group(t: Any, x: Any, w: Any, b: Any, groups: int, eps: float, silu: bool = False) -> Any:
        y = t.nn.functional.group_norm(x, groups, w, b, eps)
        return t.nn.functional.silu(y) if silu else y

    cases = {}
    for x, groups in (((4, 6), 2), ((2, 6, 5), 2), ((2, 6, 3, 4), 6), ((3, 6, 2, 2), 1)):
        for w, b in (((6,), (6,)), ((6,), None), (None, None)):
            name = f"group_norm {label(x)} in {groups}{' * w' if w else ''}{' + b' if b else ''}"
            options = {"groups": groups, "eps": EPS}
            cases[name] = Case(norm.group_norm, (x, w, b), group, options)
            options = {**options, "silu": True}
            cases[f"{name}, SiLU"] = Case(norm.group_norm, (x, w, b), group, options)
    options = {"groups": 2, "eps": EPS}
    for of, x in ((", channels last", channels_last(2, 4, 3, 5)), (" of nothing", (0, 4, 3))):
        cases[f"group_norm{of}"] = Case(norm.group_norm, (x, (4,), (4,)), group, options)
    for x, axes in (((4, 5), 1), ((2, 3, 4), 1), ((2, 3, 4), 2), ((2, 3, 4), 3), ((0, 4), 1)):
        like = x[len(x) - axes :]
        options = {"shape": like, "eps": EPS}
        for w, b in ((like, like), (like, None), (None, None)):
            name = f"layer_norm {label(x)} over {axes}{' * w' if w else ''}{' + b' if b else ''}"
            cases[name] = Case(norm.layer_norm, (x, w, b), layer, options)
        for w in (like, None):
            name = f"rms_norm {label(x)} over {axes}{' * w' if w else ''}"
            cases[name] = Case(norm.rms_norm, (x, w), root, options)
    return cases


def _embeddings() -> dict[str, Case]:
    def rows(t: Any, w: Any, index: Any, padding: int | None) -> Any:
        return t.nn.functional.embedding(t.as_tensor(index), w, padding)

    index = np.array([[1, 0, 1], [4, 2, 1]])
    cases = {}
    for i, padding in product((index, index[0, :2], index[:0]), (None, 1)):
        name, options = f"embedding {label(i.shape)} {padding}", {"index": i, "padding": padding}
        cases[name] = Case(lookup.embedding, ((5, 3),), rows, options, smooth=padding is None)
    return cases


KERNELS, STRIDES, PADDINGS = (1, 2, 3, 5), (1, 2, 3), (0, 1, 2)
SIZES = ((7, 8), (8, 7), (10, 9))


def convolved(
    t: Any, x: Any, w: Any, b: Any, relu: bool = False, pool: bool = False, **options: Any
) -> Any:
    y = t.nn.functional.conv2d(x, w, b, **options)
    y = y.relu() if relu else y
    return t.nn.functional.max_pool2d(y, 2) if pool else y


def pooled(name: str) -> Oracle:
    """PyTorch's pool of this name."""

    def oracle(t: Any, x: Any, kernel: Any, axes: int = 2, **options: Any) -> Any:
        return getattr(t.nn.functional, name)(x, kernel, **options)

    return oracle


def _convolutions() -> dict[str, Case]:
    """Every kernel, stride, padding and size, and with each the next of all other choices."""
    others = cycle(product((3, 6), (True, False), (False, True), (False, True), (False, True)))
    cases = {}
    for k, s, p, (h, v) in product(KERNELS, STRIDES, PADDINGS, SIZES):
        C, bias, relu, pool, last = next(others)
        pool = pool and min(Window(k, s, p, p).outputs(n) for n in (h, v)) >= 2
        x = channels_last(2, C, h, v) if last else (2, C, h, v)
        named = (bias, " + b"), (relu, ", relu"), (pool, ", pool"), (last, ", channels last")
        name = f"conv2d {h}x{v}x{C} k{k} s{s} p{p}{''.join(part for on, part in named if on)}"
        args = (x, (4, C, k, k), (4,) if bias else None)
        options = {"stride": s, "padding": p, "relu": relu, "pool": pool}
        cases[name] = Case(conv.conv2d, args, convolved, options)
    plain = {"stride": 1, "padding": 1, "relu": True, "pool": True}
    for name, x, w in (
        ("one channel", (2, 1, 6, 6), (3, 1, 3, 3)),
        ("a kernel that is not square", (2, 3, 6, 7), (3, 3, 3, 2)),
        ("no images", (0, 3, 6, 6), (3, 3, 3, 3)),
    ):
        cases[f"conv2d, {name}"] = Case(conv.conv2d, (x, w, (3,)), convolved, plain)
    return cases


def _pools() -> dict[str, Case]:
    cases = {}
    windows = ((2, 2, 0), (3, 2, 1), (3, 3, 0), (3, 1, 1), (2, 1, 0), (1, 1, 0), (2, 2, 1))
    for (k, s, p), (h, w), last in product((*windows, (5, 3, 2), (2, 3, 0)), SIZES, (False, True)):
        x = channels_last(2, 3, h, w) if last else (2, 3, h, w)
        options = {"kernel": k, "stride": s, "padding": p}
        name = f"{h}x{w} {label(options)}{' channels last' if last else ''}"
        for op in (pool.max_pool, pool.avg_pool):
            kind = f"{op.__name__}2d"
            cases[f"{kind} {name}"] = Case(op, (x,), pooled(kind), options)
    return cases


LAYERS = _softmaxes() | _norms() | _norms_of_samples() | _embeddings() | _convolutions() | _pools()

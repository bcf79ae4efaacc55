"""Test cases of ops: softmax, normalisation, convolution and pooling."""

from itertools import cycle, product
from typing import Any

import numpy as np
from helpers.ops.opcases import Case, Draw, Op, label

from nnmpi.arrays.kernels.window import Window
from nnmpi.autograd import Tensor, apply
from nnmpi.autograd.ops import conv, lookup, norm, pool, softmax

EPS = 1e-5


def _softmaxes() -> dict[str, Case]:
    cases = {}
    for (name, op), (sizes, axis) in product(
        {"softmax": softmax.softmax, "log_softmax": softmax.log_softmax}.items(),
        (((3, 4), -1), ((3, 4), 0), ((2, 3, 4), 1), ((4,), 0), ((3, 1), 1), ((0, 3), 1)),
    ):

        def oracle(t: Any, a: Any, axis: int, name: str = name) -> Any:
            return getattr(t, name)(a, axis)

        cases[f"{name} {label(sizes)} {axis}"] = Case(op, (sizes,), oracle, {"axis": axis})
        huge = np.array([[1e4, -1e4, 9999.0], [-700.0, -701.0, -702.0]])
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

    def layer(t: Any, x: Any, w: Any, b: Any, shape: Any, eps: float) -> Any:
        return t.nn.functional.layer_norm(x, shape, w, b, eps)

    def root(t: Any, x: Any, w: Any, shape: Any, eps: float) -> Any:
        return t.nn.functional.rms_norm(x, shape, w, eps)

    def group(t: Any, x: Any, w: Any, b: Any, groups: int, eps: float, silu: bool = False) -> Any:
        y = t.nn.functional.group_norm(x, groups, w, b, eps)
        return t.nn.functional.silu(y) if silu else y

    cases = {}
    known = {"mean": np.array([0.1, -0.2, 0.3]), "var": np.array([0.5, 1.0, 2.0]), "n": 0}
    inputs: dict[str, Any] = {
        "rows": (6, 3),
        "sequences": (4, 3, 5),
        "images": (2, 3, 4, 5),
        "images channels last": channels_last(2, 3, 5, 4),
    }
    for (name, x), (affine, w, b) in product(
        inputs.items(), (("", (3,), (3,)), (" without w and b", None, None))
    ):
        cases[f"batch_norm of the batch, {name}{affine}"] = Case(
            norm.batch_norm, (x, w, b), train, {"eps": EPS}, _of_the_batch
        )
        cases[f"batch_norm and ReLU, {name}{affine}"] = Case(
            norm.batch_norm, (x, w, b), train, {"eps": EPS, "relu": True}, _of_the_batch
        )
        cases[f"batch_norm of known statistics, {name}{affine}"] = Case(
            norm.batch_norm, (x, w, b), evaluate, {**known, "eps": EPS}
        )
    for x, groups in (((4, 6), 2), ((2, 6, 5), 2), ((2, 6, 3, 4), 6), ((3, 6, 2, 2), 1)):
        for w, b in (((6,), (6,)), ((6,), None), (None, None)):
            name = f"group_norm {label(x)} in {groups}{' * w' if w else ''}{' + b' if b else ''}"
            cases[name] = Case(norm.group_norm, (x, w, b), group, {"groups": groups, "eps": EPS})
            options = {"groups": groups, "eps": EPS, "silu": True}
            cases[f"{name}, SiLU"] = Case(norm.group_norm, (x, w, b), group, options)
    images = (channels_last(2, 4, 3, 5), (4,), (4,))
    cases["group_norm, channels last"] = Case(
        norm.group_norm, images, group, {"groups": 2, "eps": EPS}
    )
    cases["group_norm of nothing"] = Case(
        norm.group_norm, ((0, 4, 3), (4,), (4,)), group, {"groups": 2, "eps": EPS}
    )
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
    return {
        f"embedding {label(i.shape)} {padding}": Case(
            lookup.embedding,
            ((5, 3),),
            rows,
            {"index": i, "padding": padding},
            smooth=padding is None,
        )
        for i in (index, index[0, :2], index[:0])
        for padding in (None, 1)
    }


KERNELS, STRIDES, PADDINGS = (1, 2, 3, 5), (1, 2, 3), (0, 1, 2)
SIZES = ((7, 8), (8, 7), (10, 9))


def _conv_oracle(
    t: Any, x: Any, w: Any, b: Any, stride: int, padding: int, relu: bool, pool: bool
) -> Any:
    y = t.nn.functional.conv2d(x, w, b, stride, padding)
    y = y.relu() if relu else y
    return t.nn.functional.max_pool2d(y, 2) if pool else y


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
        cases[name] = Case(
            conv.conv2d,
            (x, (4, C, k, k), (4,) if bias else None),
            _conv_oracle,
            {"stride": s, "padding": p, "relu": relu, "pool": pool},
        )
    plain = {"stride": 1, "padding": 1, "relu": True, "pool": True}
    for name, x, w in (
        ("one channel", (2, 1, 6, 6), (3, 1, 3, 3)),
        ("a kernel that is not square", (2, 3, 6, 7), (3, 3, 3, 2)),
        ("no images", (0, 3, 6, 6), (3, 3, 3, 3)),
    ):
        cases[f"conv2d, {name}"] = Case(conv.conv2d, (x, w, (3,)), _conv_oracle, plain)
    return cases


def _pools() -> dict[str, Case]:
    cases = {}
    windows = ((2, 2, 0), (3, 2, 1), (3, 3, 0), (3, 1, 1), (2, 1, 0), (1, 1, 0), (2, 2, 1))
    for (k, s, p), (h, w), last in product((*windows, (5, 3, 2), (2, 3, 0)), SIZES, (False, True)):
        x = channels_last(2, 3, h, w) if last else (2, 3, h, w)
        options = {"kernel": k, "stride": s, "padding": p}
        name = f"{h}x{w} {label(options)}{' channels last' if last else ''}"
        for op in (pool.max_pool, pool.avg_pool):
            cases[f"{op.__name__}2d {name}"] = Case(
                op,
                (x,),
                lambda t, x, kernel, stride, padding, name=f"{op.__name__}2d": getattr(
                    t.nn.functional, name
                )(x, kernel, stride, padding),
                options,
            )
    return cases


LAYERS = _softmaxes() | _norms() | _embeddings() | _convolutions() | _pools()

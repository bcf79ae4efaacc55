"""Arguments of the kernels of convolutions and products."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from helpers.kernels.numbers import Rng, numbers, one_of

CLOSE = 1e-6  # relative to the largest number, of what NumPy computes by products

Draw = Callable[[Rng, Any], list[Any]]


def whole(rng: Rng, shape: Any, dtype: Any) -> np.ndarray:
    """Whole numbers, whose sums are exact: then pooling finds ties, and the same largest ones."""
    return rng.integers(-4, 5, shape).astype(dtype)


def outputs_of(rng: Rng, S: tuple[int, ...], pool: bool, dtype: Any) -> list[Any]:
    """y and largest, bias and zero: what a convolution writes, and what it adds."""
    largest = np.zeros(S, "uint8") if pool else None
    row = S[2] * S[3]
    bias = one_of(rng, None, np.tile(whole(rng, S[3], dtype), S[2]))
    return [np.zeros(S, dtype), largest, bias, one_of(rng, None, np.zeros(row, dtype))]


def gradient_of(rng: Rng, S: tuple[int, ...], pool: bool, dtype: Any) -> list[Any]:
    """g, y, largest, and db: what comes back."""
    n, h, w, O = S
    g, y = whole(rng, S, dtype), one_of(rng, None, whole(rng, S, dtype))
    if rng.random() < 0.3:
        g = whole(rng, (n, O, h, w), dtype).transpose(0, 2, 3, 1)
    largest = rng.integers(0, 4, S, "uint8") if pool else None
    return [g, y, largest, one_of(rng, None, whole(rng, O, dtype))]


def images(rng: Rng, dtype: Any) -> tuple[np.ndarray, np.ndarray, tuple[int, ...], bool, int]:
    """Images with few channels, weights, the shape of the outputs, pooled or not, the stride."""
    pool, stride = one_of(rng, False, True), one_of(rng, 1, 2)
    n, h, w, C, kh, kw = (int(x) for x in rng.integers(1, 5, 6))
    O, many, rest = 16 * int(rng.integers(1, 5)), 2 if pool else 1, int(rng.integers(2))
    H, W = ((many * k - 1) * stride + kernel + rest for k, kernel in ((h, kh), (w, kw)))
    x, weights = whole(rng, (n, H, W, C), dtype), whole(rng, (kh, kw, C, O), dtype)
    return x, weights, (n, h, w, O), pool, stride


def direct_outputs(rng: Rng, dtype: Any) -> list[Any]:
    x, weights, S, pool, stride = images(rng, dtype)
    return [x, weights, *outputs_of(rng, S, pool, dtype), stride]


def direct_gradients(rng: Rng, dtype: Any) -> list[Any]:
    x, weights, S, pool, stride = images(rng, dtype)
    return [x, *gradient_of(rng, S, pool, dtype), weights, stride]


def places(rng: Rng, dtype: Any) -> list[Any]:
    """Windows of images that overlap, as a view (n, h, w, kh, kw, C), and columns."""
    n, h, w, kh, kw = (int(x) for x in rng.integers(1, 5, 5))
    C, dilation = one_of(rng, 1, 5, 32), one_of(rng, 1, 2)
    images = numbers(rng, (n, h + dilation * (kh - 1), w + dilation * (kw - 1), C), dtype)
    sn, sh, sw, sc = images.strides
    view = np.lib.stride_tricks.as_strided(
        images, (n, h, w, kh, kw, C), (sn, sh, sw, dilation * sh, dilation * sw, sc)
    )
    return [view, numbers(rng, view.shape, dtype)]


def depthwise(rng: Rng, dtype: Any) -> list[Any]:
    """x, w and z, how far the first weight is outside of an image, which may be less than nothing,
    and the steps down and right of pixels and of weights."""
    n, kh, kw = (int(x) for x in rng.integers(1, 5, 3))
    h, w, H, W = (int(x) for x in rng.integers(1, 12, 4))
    before = [int(x) for x in rng.integers(-2, 4, 2)]
    apart, C = [int(x) for x in rng.integers(1, 4, 4)], one_of(rng, 1, 16, 33, 64, 70)
    shapes = (n, H, W, C), (kh, kw, C), (n, h, w, C)
    return [*(numbers(rng, shape, dtype) for shape in shapes), *before, *apart]


def depthwise_images(rng: Rng, dtype: Any) -> list[Any]:
    x, w, z, *places = depthwise(rng, dtype)
    return [z, w, x, bool(rng.integers(2)), *places]


def depthwise_weights(rng: Rng, dtype: Any) -> list[Any]:
    x, w, z, *places = depthwise(rng, dtype)
    return [*(rng.standard_normal(a.shape).astype(dtype) for a in (x, z, w)), *places]


def products(rng: Rng, dtype: Any) -> list[Any]:
    """In every fifth draw more terms than are added at a time, of whole numbers."""
    g, m, n = (int(x) for x in rng.integers(1, [4, 20, 80]))
    k = one_of(rng, 1, 7, 64, 300, 1100)
    draw, n = (rng.standard_normal, n) if k < 1100 else (partial(whole, rng, dtype=dtype), 5 * n)
    A = draw((g, m, k)).astype(dtype)
    if rng.random() < 0.5:
        A = np.ascontiguousarray(A.transpose(0, 2, 1)).transpose(0, 2, 1)
    B, C = (draw((g, *s)).astype(dtype) for s in ((k, n), (m, n)))
    return [A, B, C, one_of(rng, False, True)]


def some(rng: Rng, *arrays: np.ndarray) -> list[Any]:
    """Some of them, in the place of others None."""
    return [one_of(rng, a, None) for a in arrays]


def linear_outputs(rng: Rng, dtype: Any) -> list[Any]:
    """In every fourth draw a layer whose products are packed in parts, of whole numbers."""
    n, K, O = (int(x) for x in rng.integers(1, 70, 3))
    draw = rng.standard_normal
    if rng.random() < 0.25:
        n, K, O = one_of(
            rng,
            (n, 100 * K, O),
            (n % 9 + 2, 60 * K, O),  # few rows
            (10 * n, 10 * K, O),
            (100 * n, K, O),
            (n, K, 100 * O),
            (600, 10, 700),
            (1100, 300, 1050),
        )
        draw = partial(whole, rng, dtype=dtype)
    x, w, bias = (draw(shape).astype(dtype) for shape in ((n, K), (O, K), O))
    return [x, w, *some(rng, bias), np.zeros((n, O), dtype), one_of(rng, False, True), True]


def linear_gradients(rng: Rng, dtype: Any) -> list[Any]:
    x, w, _, g, *_ = linear_outputs(rng, dtype)
    is_whole = (x == np.rint(x)).all()
    g[...] = whole(rng, g.shape, dtype) if is_whole else rng.standard_normal(g.shape)
    dx, dw, db = some(rng, np.zeros_like(x), np.zeros_like(w), np.zeros(len(w), dtype))
    read = x if dw is not None or dx is None else one_of(rng, x, None)
    return [g, w, read, dx, dw, db, True]


def mlp_outputs(rng: Rng, dtype: Any) -> list[Any]:
    n, *sizes = (int(x) for x in rng.integers(1, 50, rng.integers(3, 6)))
    ws, bs, ys = (
        tuple(rng.standard_normal(shape).astype(dtype) for shape in shapes)
        for shapes in (
            [*zip(sizes[1:], sizes[:-1], strict=True)],
            sizes[1:],
            [(n, O) for O in sizes[1:]],
        )
    )
    relus = tuple(one_of(rng, False, True) for _ in ws)
    x = rng.standard_normal((n, sizes[0])).astype(dtype)
    return [x, ws, tuple(some(rng, *bs)), ys, relus]


def mlp_gradients(rng: Rng, dtype: Any) -> list[Any]:
    x, ws, _, ys, relus = mlp_outputs(rng, dtype)
    g = rng.standard_normal(ys[-1].shape).astype(dtype)
    dws = tuple(some(rng, *(np.zeros_like(w) for w in ws)))
    dbs = tuple(some(rng, *(np.zeros(len(w), dtype) for w in ws)))
    return [g, x, ws, ys, relus, *some(rng, np.zeros_like(x)), dws, dbs]


CASES: dict[str, tuple[Draw, float, bool]] = {
    "products_loop": (products, CLOSE, False),
    "direct_outputs": (direct_outputs, CLOSE, False),
    "direct_gradients": (direct_gradients, CLOSE, False),
    "gather_loop": (places, 0, False),
    "overlap_loop": (places, CLOSE, False),
    "depthwise_outputs": (depthwise, 0, False),
    "depthwise_images": (depthwise_images, 0, False),
    "depthwise_weights": (depthwise_weights, CLOSE, False),
    "linear_outputs": (linear_outputs, CLOSE, False),
    "linear_gradients": (linear_gradients, CLOSE, False),
    "mlp_outputs": (mlp_outputs, CLOSE, False),
    "mlp_gradients": (mlp_gradients, CLOSE, False),
}
"""As in tests/kernels/test_table.py."""

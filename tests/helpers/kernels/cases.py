"""Arguments of the kernels of activations, softmax, normalisation and rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from helpers.kernels.numbers import Rng, numbers, one_of, windows

from nnmpi.arrays.dtypes import types_of
from nnmpi.arrays.kernels import activations, norm
from nnmpi.arrays.kernels.softmax import like_scores

CLOSE = 2e-6  # relative to the largest number: other orders of sums, other polynomials

Draw = Callable[[Rng, Any], list[Any]]


def images(rng: Rng, count: int, dtype: Any) -> list[np.ndarray]:
    """Arrays of one shape; in every second draw channels last."""
    S, last = windows(rng), rng.random() < 0.5
    found = (numbers(rng, S, dtype) for _ in range(count))
    return [np.moveaxis(a, -1, 1) if last else a for a in found]


def of_images(count: int) -> Draw:
    return lambda rng, dtype: images(rng, count, dtype)


def along(count: int) -> Draw:
    """Arrays and the axis of channels; the second of three holds logarithms of probabilities."""

    def draw(rng: Rng, dtype: Any) -> list[Any]:
        S, to = windows(rng), one_of(rng, -1, 1)
        arrays = [np.moveaxis(numbers(rng, S, dtype), -1, to) for _ in range(count)]
        if count == 3:
            arrays[1] = -abs(arrays[1])
        return [*arrays, to]

    return draw


def scores(rng: Rng, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    n, C = int(rng.choice([1, 3, 16, 17, 64])), int(rng.choice([1, 3, 10, 32, 33, 100]))
    return numbers(rng, (n, C), dtype), rng.integers(0, C, n)


def like(z: np.ndarray) -> np.ndarray:
    found = like_scores(z)
    found[...] = 0
    return found


def cross_entropy(rng: Rng, dtype: Any) -> list[Any]:
    z, labels = scores(rng, dtype)
    scale, loss = one_of(rng, (1.0, np.zeros(len(z), dtype)), (1 / len(z), np.zeros((), dtype)))
    return [z, labels, scale, loss, like(z), np.zeros(len(z), np.int64)]


def cross_entropy_gradient(rng: Rng, dtype: Any) -> list[Any]:
    z, labels = scores(rng, dtype)
    p, n = like(z), len(z)
    p[...] = z
    by_class = p.strides[0] < p.strides[1]
    at = labels * n + np.arange(n) if by_class and n > 1 else np.arange(n) * z.shape[1] + labels
    g = one_of(rng, numbers(rng, n, dtype), np.array(0.7, dtype))
    return [p, at % z.size, g, 0.5, np.zeros_like(z)]


def class_losses(rng: Rng, dtype: Any) -> list[Any]:
    z, labels = scores(rng, dtype)
    n, kind = len(z), types_of(np.dtype(dtype)).sums
    scale, loss = one_of(rng, (1.0, np.zeros(n, kind)), (1 / n, np.zeros((), kind)))
    args = [z, labels, scale, loss, np.zeros((2, n), kind), np.zeros(n, np.int64)]
    factor = None if loss.ndim else np.zeros((), kind)
    return [*args, *one_of(rng, (), (int(labels[0]), None), (int(labels[0]), factor))]


def sum_losses(rng: Rng, dtype: Any) -> list[Any]:
    kind = types_of(np.dtype(dtype)).sums
    losses = abs(numbers(rng, one_of(rng, 1, 300, 3000), kind))
    return [losses, np.zeros((), kind), one_of(rng, 1.0, 0.3)]


def class_gradient(rng: Rng, dtype: Any) -> list[Any]:
    z, labels = scores(rng, dtype)
    n, kind = len(z), types_of(np.dtype(dtype)).sums
    sums = np.stack([z.max(axis=1).astype(kind), rng.random(n).astype(kind) + 1])
    g = one_of(rng, numbers(rng, n, kind), np.array(0.7, kind))
    ignores = one_of(rng, (), (int(labels[0]), None), (int(labels[0]), np.array(0.3, kind)))
    return [z, labels, sums, g, 0.5, np.zeros_like(z), *ignores]


def shapes(rng: Rng) -> tuple[int, int, int]:
    """Samples, positions and channels."""
    return one_of(rng, 1, 3), int(rng.choice([1, 2, 9, 130, 700])), one_of(rng, 1, 3, 32, 100, 300)


def normal(rng: Rng, dtype: Any, *shapes: Any) -> list[Any]:
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def layers(rng: Rng) -> tuple[int, int]:
    """Rows, and the numbers of one."""
    return int(rng.choice([1, 3, 70])), int(rng.choice([1, 5, 16, 100, 300]))


def drawn(sides: str, sizes: Callable[[Rng], tuple[int, ...]], *arguments: Any) -> Draw:
    """Normal numbers in arrays whose sides are letters, of sizes that are drawn; an array with "?"
    may be None. Other arguments are as they are."""

    def draw(rng: Rng, dtype: Any) -> list[Any]:
        size = dict(zip(sides, sizes(rng), strict=True))

        def made(argument: Any) -> Any:
            if not isinstance(argument, str):
                return argument
            (array,) = normal(rng, dtype, [size[side] for side in argument.rstrip("?")])
            return one_of(rng, None, array) if argument.endswith("?") else array

        return [*map(made, arguments)]

    return draw


of_channels, of_rows = partial(drawn, "NPC", shapes), partial(drawn, "MK", layers)
normalise = of_channels("NPC", "NC", "NC", "C?", "NPC")
norm_sums = of_channels("NPC", "NPC", "NC", "NC", "NC")
norm_gradient = of_channels("NPC", "NPC", "NC", "NC", "NC", "NC", "NPC")
layer_norm = of_rows("MK", "K?", "K?", 1e-5, "M", "M", "MK")
layer_norm_gradient = of_rows("MK", "MK", "K?", "M", "M", "MK")
layer_norm_sums = of_rows("MK", "MK", "M", "M", "K", "K")
rms_norm = of_rows("MK", "K?", 1e-5, "M", "MK")
rms_norm_gradient = of_rows("MK", "MK", "K?", "M", "MK")


def moments(rng: Rng, dtype: Any) -> list[Any]:
    N, P, C = shapes(rng)
    x, *rest = normal(rng, dtype, (N, P, C), (N, C), (N, C))
    return [x + 30 * rng.random(C).astype(dtype), *rest]


def tracked_moments(rng: Rng, dtype: Any) -> list[Any]:
    _, P, C = shapes(rng)
    x, *arrays = normal(rng, dtype, (1, P + 1, C), (1, C), (1, C), C, C)
    return [x + 30 * rng.random(C).astype(dtype), *arrays, np.array(7), 0.1]


def batch_norm(rng: Rng, dtype: Any) -> list[Any]:
    _, P, C = shapes(rng)
    x, y, mean, m2, scales, w, b = normal(rng, dtype, *[(1, P, C)] * 2, (1, C), C, (2, C), C, C)
    w, b, relu = one_of(rng, None, w), one_of(rng, None, b), one_of(rng, False, True)
    return [x, mean, abs(m2), one_of(rng, 1, 300), w, b, 1e-5, relu, scales, y]


def batch_norm_sums(rng: Rng, dtype: Any) -> list[Any]:
    _, P, C = shapes(rng)
    g, x, mean, r, *outs = normal(rng, dtype, *[(1, P, C)] * 2, (1, C), C, (2, C), C, C)
    y, masked = one_of(rng, (None, None), (numbers(rng, g.shape, dtype), np.zeros_like(g)))
    return [g, x, y, mean, r, masked, *outs]


def group_norm(rng: Rng, dtype: Any) -> list[Any]:
    N, P, _ = shapes(rng)
    groups, each = one_of(rng, 1, 2, 8), one_of(rng, 1, 4, 32) if P > 1 else 4
    C = groups * each
    x, w, b, mean, r, y = normal(rng, dtype, (N, P, C), C, C, (N, C), (N, C), (N, P, C))
    x += 30 * rng.random(C).astype(dtype)
    with_silu = bool(rng.integers(2))
    return [x, one_of(rng, None, w), one_of(rng, None, b), groups, 0.1, with_silu, mean, r, y]


def group_norm_gradient(rng: Rng, dtype: Any) -> list[Any]:
    x, w, b, groups, eps, with_silu, mean, r, y = group_norm(rng, dtype)
    x -= x.mean(axis=(0, 1))  # else the sums cancel
    norm.group_norm_loop.reference(x, w, b, groups, eps, with_silu, mean, r, y)
    g, dx, total, dot = normal(rng, dtype, x.shape, x.shape, mean.shape, mean.shape)
    dx = one_of(rng, None, dx)
    return [g, x, y if with_silu else None, w, b, mean, r, groups, total, dot, dx]


def silu_gradient(rng: Rng, dtype: Any) -> list[Any]:
    g, x, y, dx = of_images(4)(rng, dtype)
    with np.errstate(all="ignore"):
        activations.silu_loop.reference(x, dx, y)
    return [g, x, y, dx]


def rms_norm_sum(rng: Rng, dtype: Any) -> list[Any]:
    """Of positive numbers, whose sums do not cancel."""
    return [*map(abs, of_rows("MK", "MK", "M", "K")(rng, dtype))]


def column_sum(rng: Rng, dtype: Any) -> list[Any]:
    n, k = one_of(rng, 1, 7, 400, 3000), one_of(rng, 1, 10, 33, 300)
    return normal(rng, dtype, (n, k), k)


def add_sorted(rng: Rng, dtype: Any) -> list[Any]:
    n, rows, width = one_of(rng, 1, 7, 40), one_of(rng, 1, 9), one_of(rng, 1, 3, 300)
    index = rng.integers(0, rows, n)
    order = np.argsort(index, kind="stable")
    to, g = normal(rng, dtype, (rows, width), (n, width))
    return [to, index[order], order, g]


def batch_norm_gradient(rng: Rng, dtype: Any) -> list[Any]:
    _, P, C = shapes(rng)
    rows = (1, P, C)
    g, x, mean, sums, scale, r, dx = normal(rng, dtype, rows, rows, (1, C), (2, C), C, C, rows)
    return [g, x, mean, sums, scale, r, int(rng.integers(1, 1000)), dx]


def track(rng: Rng, dtype: Any) -> list[Any]:
    C = one_of(rng, 1, 33, 300)
    mean, var, *now = normal(rng, dtype, C, C, C, C)
    return [mean, var, np.array(7), *now, int(rng.integers(2, 1000)), 0.1]


def dropout_mask(rng: Rng, dtype: Any) -> list[Any]:
    n, m = int(rng.integers(1, 5)), one_of(rng, 1, 17, 3000)
    index = rng.integers(0, 2**32, m).astype(np.uint32)
    rows = rng.integers(0, one_of(rng, 9, 2**62), n)
    key = (int(word) for word in rng.integers(0, 2**32, 4))
    return [index, rows, *key, int(rng.integers(2**32)), 1.7, np.zeros((n, m), dtype)]


def random_bits(rng: Rng, dtype: Any) -> list[Any]:
    index, rows, *key, _, _, mask = dropout_mask(rng, dtype)
    return [index, rows, *key, np.zeros(mask.shape, np.uint32)]


def embedding_gradient(rng: Rng, dtype: Any) -> list[Any]:
    shape, rows, width = one_of(rng, (1,), (7,), (3, 5)), one_of(rng, 1, 9), one_of(rng, 1, 3, 40)
    g, dw = numbers(rng, (*shape, width), dtype), numbers(rng, (rows, width), dtype)
    return [g, rng.integers(0, rows, shape), dw]


CASES: dict[str, tuple[Draw, float, bool]] = {
    "tanh_loop": (of_images(2), CLOSE, False),
    "tanh_gradient_loop": (of_images(3), 0, False),
    "sigmoid_loop": (of_images(2), CLOSE, False),
    "sigmoid_gradient_loop": (of_images(3), 0, False),
    "silu_loop": (of_images(3), CLOSE, False),
    "silu_gradient_loop": (silu_gradient, CLOSE, False),
    "gelu_loop": (of_images(3), CLOSE, False),
    "gelu_tanh_loop": (of_images(3), CLOSE, False),
    "softmax_loop": (along(2), CLOSE, False),
    "softmax_gradient_loop": (along(3), CLOSE, False),
    "log_softmax_loop": (along(2), CLOSE, False),
    "log_softmax_gradient_loop": (along(3), CLOSE, False),
    "cross_entropy_loop": (cross_entropy, CLOSE, False),
    "cross_entropy_gradient_loop": (cross_entropy_gradient, 0, False),
    "class_losses_loop": (class_losses, CLOSE, False),
    "class_gradient_loop": (class_gradient, CLOSE, False),
    "sum_losses_loop": (sum_losses, CLOSE, False),
    "moments_loop": (moments, CLOSE, False),
    "tracked_moments_loop": (tracked_moments, CLOSE, False),
    "normalise_loop": (normalise, 0, False),
    "normalise_silu_loop": (normalise, CLOSE, False),
    "norm_sums_loop": (norm_sums, CLOSE, False),
    "batch_norm_sums_loop": (batch_norm_sums, CLOSE, False),
    "norm_gradient_loop": (norm_gradient, 0, False),
    "group_norm_loop": (group_norm, CLOSE, False),
    "group_norm_gradient_loop": (group_norm_gradient, CLOSE, False),
    "layer_norm_loop": (layer_norm, CLOSE, False),
    "layer_norm_gradient_loop": (layer_norm_gradient, CLOSE, False),
    "layer_norm_sums_loop": (layer_norm_sums, CLOSE, False),
    "rms_norm_loop": (rms_norm, CLOSE, False),
    "rms_norm_gradient_loop": (rms_norm_gradient, CLOSE, False),
    "rms_norm_sum_loop": (rms_norm_sum, CLOSE, False),
    "column_sum_loop": (column_sum, CLOSE, True),
    "add_sorted_loop": (add_sorted, CLOSE, False),
    "batch_norm_loop": (batch_norm, 0, False),
    "batch_norm_gradient_loop": (batch_norm_gradient, 0, False),
    "track_loop": (track, 0, False),
    "dropout_mask_loop": (dropout_mask, 0, False),
    "random_bits_loop": (random_bits, 0, False),
    "embedding_gradient_loop": (embedding_gradient, 0, False),
}
"""As in tests/kernels/test_table.py."""

"""Arguments of the kernels of attention."""

from collections.abc import Callable
from typing import Any

import numpy as np
from helpers.kernels.numbers import Rng, one_of

from nnmpi.addons.transformer.kernels import attention  # noqa: F401 - fills the table of kernels
from nnmpi.arrays.native.table import KERNELS

CLOSE = 4e-6  # relative to the largest number: products of another order, e^(s - lse)

Draw = Callable[[Rng, Any], list[Any]]


def heads_last(rng: Rng, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """(N, K, ..., T, D), in every second draw with a position's heads side by side in memory."""
    if rng.random() < 0.5:
        return rng.standard_normal(shape).astype(dtype)
    *lead, T, D = shape
    whole = rng.standard_normal((lead[0], T, *lead[1:], D)).astype(dtype)
    return np.moveaxis(whole, 1, -2)


LENGTHS = 7, 33, 64, 300
"""Of one key the gradients are 0 but for rounding."""


def forward(rng: Rng, dtype: Any, lengths: tuple[int, ...] = (1, *LENGTHS)) -> list[Any]:
    """q, k, v, y, lse, scale, first, mask, keep: in some draws of several blocks of keys."""
    N, K, G = map(int, rng.integers(1, 3, 3))
    T, S = (one_of(rng, *lengths) for _ in range(2))
    D, E = (one_of(rng, 1, 5, 32, 40) for _ in range(2))
    q, y = (heads_last(rng, (N, K, G, T, n), dtype) for n in (D, E))
    k, v = (heads_last(rng, (N, K, S, n), dtype) for n in (D, E))
    first, scale = one_of(rng, -1, -1, 0, 40), one_of(rng, D**-0.5, -0.3)
    return [q, k, v, y, np.zeros((N, K, G, T), dtype), scale, first, None, None]


def backward(rng: Rng, dtype: Any) -> list[Any]:
    """q, k, v, y, lse, dy, dq, dk, dv, scale, first, mask, keep."""
    args = forward(rng, dtype, LENGTHS)
    KERNELS["attention_loop"].reference(*args)
    q, k, v, y, _ = args[:5]
    gradients = (heads_last(rng, a.shape, dtype) for a in (y, q, k, v))
    return [*args[:5], *gradients, *args[5:]]


def scored(rng: Rng, dtype: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Products of queries and keys, numbers of their rows, and where later keys begin."""
    h, rows, K = one_of(rng, 1, 3), one_of(rng, 1, 5, 40), one_of(rng, 1, 7, 300)
    (s,) = (rng.standard_normal((h, rows, K)).astype(dtype),)
    return s, s.max(axis=-1) + 1, one_of(rng, -1, 0, 2, 290)


def probabilities(rng: Rng, dtype: Any) -> list[Any]:
    s, lse, later = scored(rng, dtype)
    return [s, lse, 0.3, later]


def scores_gradient(rng: Rng, dtype: Any) -> list[Any]:
    s, lse, later = scored(rng, dtype)
    dp, of_rows = (rng.standard_normal(a.shape).astype(dtype) for a in (s, lse))
    return [s, dp, lse, of_rows, 0.3, later]


CASES: dict[str, tuple[Draw, float, bool]] = {
    "attention_loop": (forward, CLOSE, False),
    "attention_gradient_loop": (backward, CLOSE, False),
    "probabilities_loop": (probabilities, 2e-6, False),
    "scores_gradient_loop": (scores_gradient, 2e-6, False),
}
"""As in tests/kernels/test_table.py."""

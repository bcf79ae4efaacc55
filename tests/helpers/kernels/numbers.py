"""Numbers that arguments of kernels are made of."""

from typing import Any

import numpy as np

SPECIAL = [0.0, -0.0, np.nan, np.inf, -np.inf, 1e-40, -1e-40, 1.0, -3.0]

Rng = np.random.Generator


def numbers(rng: Rng, shape: Any, dtype: Any) -> np.ndarray:
    """Normal numbers, and in every fourth array special ones among them."""
    found = rng.standard_normal(shape).astype(dtype)
    if rng.random() < 0.25:
        found = np.where(rng.random(shape) < 0.3, rng.choice(SPECIAL, shape), found).astype(dtype)
    return found


def one_of(rng: Rng, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def windows(rng: Rng) -> tuple[int, int, int, int]:
    """Images, rows, columns and channels."""
    n, h, w = (int(x) for x in rng.integers(1, 6, 3))
    return n, h, w, int(rng.choice([1, 3, 16, 33]))


def by_window(image: np.ndarray) -> np.ndarray:
    """The windows of 2x2 of images: (2, 2, n, rows, columns, C)."""
    n, H, W, C = image.shape
    return image.reshape(n, H // 2, 2, W // 2, 2, C).transpose(2, 4, 0, 1, 3, 5)

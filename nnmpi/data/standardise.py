"""Standardising samples: mean 0 and standard deviation 1, by the training data."""

from typing import Any, NamedTuple

import numpy as np

from nnmpi.data.dataset import Split

BLOCK = 1 << 18  # elements taken together, so that a block of float64 stays in cache


class Standardiser(NamedTuple):
    """What is subtracted from samples, and what they are divided by.

    mean, std: float32, (C, 1, 1) for images and (F,) for tables
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, split: Split) -> "Standardiser":
        """The statistics of a split: one pair a channel, or a feature of a table.

        A constant channel gets 1 for its standard deviation, and so becomes 0.
        """
        n, mean, m2 = 0, np.float64(0), np.float64(0)
        rows = max(BLOCK // max(split.x[0].size, 1), 1)
        for start in range(0, len(split.x), rows):
            block = split.x[start : start + rows].astype("float64")
            n, mean, m2 = _joined((n, mean, m2), _moments(block))
        std = np.sqrt(m2 / n)
        least = np.maximum(1e-12 * np.abs(mean), np.finfo("float32").tiny)
        std = np.where(std > least, std, 1.0)
        shape = (-1, 1, 1) if split.x.ndim == 4 else (-1,)
        return cls(mean.reshape(shape).astype("float32"), std.reshape(shape).astype("float32"))

    def apply(self, x: np.ndarray, dtype: Any = "float32") -> np.ndarray:
        """(x - mean) / std in a fresh array: one subtraction, one multiplication.

        The mean is subtracted first, so that values far from zero keep their digits.
        Each element is treated alike, whatever batch it comes in. float16 is worked
        out in float32.
        """
        work = np.result_type(dtype, "float32")
        out: np.ndarray = np.subtract(x, self.mean, dtype=work)
        out *= np.divide(1.0, self.std, dtype=work)
        return out.astype(dtype, copy=False)


def _moments(x: np.ndarray) -> tuple[int, Any, Any]:
    """(n, mean, M2) a channel or a feature, M2 being the sum of squared deviations."""
    axes = (0, 2, 3) if x.ndim == 4 else (0,)
    mean = x.mean(axes, keepdims=True)
    x -= mean
    x *= x
    return x.size // mean.size, mean.ravel(), x.sum(axes)


def _joined(a: tuple[int, Any, Any], b: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """The moments of two sets of values together (Chan, Golub and LeVeque)."""
    n = a[0] + b[0]
    shift = b[1] - a[1]
    return n, a[1] + shift * (b[0] / n), a[2] + b[2] + shift**2 * (a[0] * b[0] / n)

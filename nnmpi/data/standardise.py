"""Standardises samples to mean 0 and standard deviation 1 of the training data."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nnmpi.data.dataset import Split

BLOCK = 1 << 18  # elements per block, so that a block of float64 stays in cache


class Standardiser(NamedTuple):
    """Mean and standard deviation per channel or feature.

    mean, std: float32, (C, 1, 1) for images, (C, 1) for sequences and (F,) for tables
    """

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, split: Split) -> "Standardiser":
        """The statistics of a split: one pair per channel, or feature of a table.

        A constant channel gets a standard deviation of 1, and so becomes 0.
        """
        n, mean, m2 = 0, np.float64(0), np.float64(0)
        rows = max(BLOCK // max(split.x[0].size, 1), 1)
        for start in range(0, len(split.x), rows):
            block = split.x[start : start + rows].astype("float64")
            n, mean, m2 = _merge((n, mean, m2), _moments(block))
        std = np.sqrt(m2 / n)
        least = np.maximum(1e-12 * np.abs(mean), np.finfo("float32").tiny)
        std = np.where(std > least, std, 1.0)
        shape = _shape(split.x)
        return cls(mean.reshape(shape).astype("float32"), std.reshape(shape).astype("float32"))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "Standardiser":
        """The standardiser that a saved model was trained with, to the same bits."""
        if not metadata.keys() >= {"mean", "std"}:
            raise ValueError(
                "the metadata have no mean and std: the file was not saved by a run of nnmpi; "
                "standardise samples as in the training of the model"
            )
        try:
            found = [json.loads(metadata[key]) for key in ("mean", "std")]
            with np.errstate(over="ignore"):
                mean, std = (np.asarray(numbers, "float32") for numbers in found)
            usable = mean.shape == std.shape and np.isfinite([mean, std]).all() and (std > 0).all()
        except (ValueError, TypeError, RecursionError):
            usable = False
        if not usable:
            raise ValueError(
                f"mean {metadata['mean']:.60} and std {metadata['std']:.60} in the metadata are "
                "not JSON lists of numbers, as many of each, with every std above 0"
            )
        return cls(mean, std)

    def metadata(self) -> dict[str, str]:
        """Mean and standard deviation as JSON lists, with all digits and in their shapes."""
        return {"mean": json.dumps(self.mean.tolist()), "std": json.dumps(self.std.tolist())}

    def shaped_for(self, x: np.ndarray) -> "Standardiser":
        """The same for samples like these, whatever axes of length 1 there are."""
        shape = _shape(x)
        if self.mean.size != shape[0]:
            what = "channels" if x.ndim > 2 else "features"
            raise ValueError(
                f"mean and std are for {self.mean.size} channels or features, and the samples have "
                f"{shape[0]} {what}; take samples like those that the model was trained on"
            )
        return Standardiser(self.mean.reshape(shape), self.std.reshape(shape))

    def apply(self, x: np.ndarray, dtype: Any = "float32") -> np.ndarray:
        """(x - mean) / std in a new array.

        The mean is subtracted first, so that values far from zero keep their digits. The result
        for an element does not depend on its batch. float16 is computed in float32.
        """
        work = np.result_type(dtype, "float32")
        out: np.ndarray = np.subtract(x, self.mean, dtype=work)
        out *= np.divide(1.0, self.std, dtype=work)
        return out.astype(dtype, copy=False)


def _shape(x: np.ndarray) -> tuple[int, ...]:
    """That of the mean of samples: one number per channel, or feature of a table."""
    return x.shape[1], *(1,) * (x.ndim - 2)


def _moments(x: np.ndarray) -> tuple[int, Any, Any]:
    """(n, mean, M2) per channel or feature; M2 is the sum of squared deviations."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes, keepdims=True)
    x -= mean
    x *= x
    return x.size // mean.size, mean.ravel(), x.sum(axes)


def _merge(a: tuple[int, Any, Any], b: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """The moments of the union of two sets of values (Chan, Golub and LeVeque)."""
    n = a[0] + b[0]
    shift = b[1] - a[1]
    return n, a[1] + shift * (b[0] / n), a[2] + b[2] + shift**2 * (a[0] * b[0] / n)

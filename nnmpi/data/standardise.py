"""Standardises samples to the mean 0 and standard deviation 1 of the training data."""

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.data.dataset import Split
from nnmpi.data.inputs import (
    Inputs,
    Structure,
    aligned,
    arrays,
    each,
    is_index,
    is_one_row,
    like,
    parts,
)
from nnmpi.options.user_files import parsed

BLOCK = 1 << 18  # elements per block, so that a block of float64 stays in cache


class Standardiser(NamedTuple):
    """The mean and standard deviation of samples per channel or feature. Inputs that are indices,
    such as tokens, have none, and stay unchanged.

    mean, std: float32, (C, 1, 1) for images, (C, 1) for sequences, (F,) for tables, () for scalars;
        None for indices; a tuple or a dict of these for several inputs
    """

    mean: Structure[Any]
    std: Structure[Any]

    @classmethod
    def of(cls, split: Split) -> "Standardiser":
        """Computes a mean and a standard deviation per channel of a training split, or per feature
        of a table; a constant channel gets a deviation of 1, and so becomes 0."""
        return cls._of_pairs(split.x, [_statistics(x) for x in arrays(split.x)])

    @classmethod
    def of_numbers(cls, x: Inputs, mean: float, std: float) -> "Standardiser":
        """A standardiser with one mean and one deviation for all channels or features of samples
        like x; raises ValueError unless both are finite float32, and std is above 0."""
        shapes = [None if is_index(array) else _shape(array) for array in arrays(x)]
        pairs = [
            (None, None) if s is None else _read(np.full(s, mean), np.full(s, std)) for s in shapes
        ]
        return cls._of_pairs(x, pairs)

    @classmethod
    def _of_pairs(cls, like_these: Structure[Any], pairs: Sequence["Pair"]) -> "Standardiser":
        """A standardiser from one (mean, std) pair per input, in the structure of `like_these`."""
        return cls(*(like(like_these, column) for column in zip(*pairs, strict=True)))

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> "Standardiser":
        """The standardiser of a saved model, bit for bit; ValueError if it has none."""
        if not metadata.keys() >= {"mean", "std"}:
            raise ValueError(
                "the metadata have no mean and std: the file was not saved by a run of nnmpi; "
                "standardise samples as in the training of the model"
            )
        try:
            mean, std = (_from_json(parsed(json.loads, metadata[key])) for key in ("mean", "std"))
            return cls._of_pairs(mean, [_read(*row) for row in aligned(mean, std)])
        except (ValueError, TypeError, OverflowError):
            raise ValueError(
                f"mean {metadata['mean']:.60} and std {metadata['std']:.60} in the metadata are "
                "not JSON lists of numbers of equal lengths, with every std above 0"
            ) from None

    def metadata(self) -> dict[str, str]:
        """Mean and standard deviation as JSON lists in their shapes; indices are null, several
        inputs an object, with the keys "0", "1", ... for a tuple."""
        return {"mean": json.dumps(_to_json(self.mean)), "std": json.dumps(_to_json(self.std))}

    def shaped_for(self, x: Inputs) -> "Standardiser":
        """A copy with mean and std reshaped to broadcast with samples like x; raises ValueError
        unless they have as many channels or features as x."""
        return self._of_pairs(x, [_shaped(*row) for row in aligned(x, self.mean, self.std)])

    def apply(self, x: Inputs, dtype: Any = "float32") -> Inputs:
        """(x - mean) / std in a new array; indices unchanged. The mean is subtracted first, so that
        values far from zero keep their digits. The result for an element does not depend on its
        batch. float16 is computed in float32."""
        return each(partial(_standardised, dtype=dtype), x, self.mean, self.std)


Pair: TypeAlias = tuple[np.ndarray | None, np.ndarray | None]
"""The mean and the standard deviation of an input; None for indices."""


def _statistics(x: np.ndarray) -> Pair:
    if is_index(x):
        return None, None
    n, mean, m2 = 0, np.float64(0), np.float64(0)
    if is_one_row(x):
        x = x[:1]
    rows = max(BLOCK // max(x[0].size, 1), 1)
    for start in range(0, len(x), rows):
        n, mean, m2 = _merge((n, mean, m2), _moments(x[start : start + rows].astype("float64")))
    std = np.sqrt(m2 / n)
    least = np.maximum(1e-12 * np.abs(mean), np.finfo("float32").tiny)
    std = np.where(std > least, std, 1.0)
    shape = _shape(x)
    return mean.reshape(shape).astype("float32"), std.reshape(shape).astype("float32")


def _standardised(x: np.ndarray, mean: np.ndarray | None, std: Any, dtype: Any) -> np.ndarray:
    if mean is None:
        return x
    work = np.result_type(dtype, "float32")
    out: np.ndarray = np.subtract(x, mean, dtype=work)
    out *= np.divide(1.0, std, dtype=work)
    return out.astype(dtype, copy=False)


def _shaped(x: np.ndarray, mean: np.ndarray | None, std: Any) -> Pair:
    """The mean and std reshaped for x; raises ValueError if they do not fit. Indices have no mean,
    and all other samples have one."""
    if mean is None:
        if not is_index(x):
            raise ValueError(
                f"the model was trained on indices, but the samples are {x.dtype}; give "
                "x.astype('int64')"
            )
        return None, None
    if is_index(x):
        raise ValueError(
            f"mean and std are for features, but the samples are {x.dtype}, i.e. indices; give "
            "features as x.astype('float32')"
        )
    shape = _shape(x)
    if mean.size != math.prod(shape):
        axes = "channels" if x.ndim > 2 else "features"
        raise ValueError(
            f"mean and std are for {mean.size} channels or features, but the samples have "
            f"{math.prod(shape)} {axes}; take samples like those that the model was trained on"
        )
    return mean.reshape(shape), std.reshape(shape)


def _to_json(values: Structure[np.ndarray | None]) -> Any:
    lists = [(name[1:], None if a is None else a.tolist()) for name, a in parts(values)]
    return dict(lists) if isinstance(values, tuple | dict) else lists[0][1]


def _from_json(values: Any) -> Any:
    """Returns the mean or deviation that JSON in a model's metadata gives: a list of numbers; for
    several inputs a dict of lists, or a tuple if its keys are "0", "1", ..."""
    is_tuple = isinstance(values, dict) and [*values] == [str(i) for i in range(len(values))]
    return tuple(values.values()) if is_tuple else values


def _read(mean: Any, std: Any) -> Pair:
    """Returns (mean, std) as arrays, given the lists of numbers in a model's metadata; raises
    ValueError or TypeError unless they are a valid mean and std."""
    if mean is None and std is None:
        return None, None
    with np.errstate(over="ignore"):
        pair = np.asarray(mean, "float32"), np.asarray(std, "float32")
    if pair[0].shape != pair[1].shape or not np.isfinite(pair).all() or not (pair[1] > 0).all():
        raise ValueError
    return pair


def _shape(x: np.ndarray) -> tuple[int, ...]:
    """Returns the shape of the mean: one value per channel, or per feature."""
    return x.shape[1:2] + (1,) * (x.ndim - 2)


def _moments(x: np.ndarray) -> tuple[int, Any, Any]:
    """Returns (n, mean, sum of squared deviations) per channel or feature."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes, keepdims=True)
    x -= mean
    x *= x
    return x.size // mean.size, mean.ravel(), x.sum(axes)


def _merge(a: tuple[int, Any, Any], b: tuple[int, Any, Any]) -> tuple[int, Any, Any]:
    """Combines the moments of two sets of values (Chan, Golub and LeVeque)."""
    n = a[0] + b[0]
    shift = b[1] - a[1]
    return n, a[1] + shift * (b[0] / n), a[2] + b[2] + shift**2 * (a[0] * b[0] / n)

"""Difference: how far two arrays are apart, in three measures."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np


class Difference(NamedTuple):
    """The largest difference found, in three measures."""

    absolute: float = 0.0
    relative: float = 0.0
    ulp: float = 0.0


def difference(a: np.ndarray, b: np.ndarray, scale: float | None = None) -> Difference:
    """The difference of two arrays; relative to `scale`, or to the largest number of b.

    A NaN equals a NaN, and an infinity the same infinity; from all else they differ infinitely.
    """
    if not a.size:
        return Difference()
    gap = np.abs(a - b)
    gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, np.where(np.isnan(gap), np.inf, gap))
    absolute = float(gap.max())
    if scale is None:
        scale = scale_of(b)
    ulps = np.where(gap > 0, gap / np.spacing(np.maximum(np.abs(a), np.abs(b))), 0)
    ulps = np.where(np.isnan(ulps), np.inf, ulps)
    relative = 0.0 if absolute == 0 else (absolute / scale if scale else math.inf)
    return Difference(absolute, relative, float(ulps.max()))


def scale_of(b: np.ndarray) -> float:
    """The largest absolute value of the finite numbers of an array."""
    return float(np.abs(b, where=np.isfinite(b), out=np.zeros_like(b)).max(initial=0))


def largest(differences: Iterable[Difference]) -> Difference:
    """The largest of each measure; a NaN is larger than any number."""
    return Difference(*np.max([Difference(), *differences], axis=0).tolist())

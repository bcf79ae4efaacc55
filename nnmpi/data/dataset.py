"""What a data set is: images or rows with labels, in a training and a test part."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi import keyed


class Split(NamedTuple):
    """Samples with their labels.

    x: uint8 or float32, (N, features) or (N, C, H, W)
    y: int64, (N,), classes counted from 0
    """

    x: np.ndarray
    y: np.ndarray


class Dataset(NamedTuple):
    """A training and a test split, the number of classes, and a line for the user.

    note: one sentence about how the data were found or divided; empty if there is
    nothing to say.
    """

    name: str
    train: Split
    test: Split
    classes: int
    note: str


class Request(NamedTuple):
    """What a loader of a data set is asked for.

    argument: what the user wrote behind the name (a file, a shape), else empty
    directory: where files of data sets are looked for, and downloaded to
    """

    argument: str
    directory: Path
    download: bool
    seed: int


class Entry(NamedTuple):
    """One family member: its loader, and the form in which the command line names it."""

    load: Callable[[Request], Dataset]
    form: str


def hold_out(
    x: np.ndarray, y: np.ndarray, seed: int, name: str, fraction: float = 0.2
) -> tuple[Split, Split]:
    """Training and test splits, where a keyed choice of `fraction` of each class is for testing.

    Rows are shuffled, then put in order of class, and of this line of n rows t are
    taken at even distances: k is taken where (k + 1) t / n passes an integer. So
    exactly t rows are taken, and each class gives its share, to one row.
    Both splits keep the order in which the rows came.
    """
    n = len(y)
    if n < 2:
        raise ValueError(f"{name}: {n} sample cannot be divided; give at least 2, or test data")
    t = min(max(round(n * fraction), 1), n - 1)
    order = keyed.permutation(keyed.key(seed, "hold-out", name), n)
    line = order[np.argsort(y[order], kind="stable")]
    k = np.arange(n)
    taken = np.zeros(n, bool)
    taken[line] = (k + 1) * t // n > k * t // n
    return Split(x[~taken], y[~taken]), Split(x[taken], y[taken])

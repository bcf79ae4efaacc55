"""The types of data sets: samples with labels, in a training and a test split."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi import keyed
from nnmpi.data.inputs import Inputs, each


class Split(NamedTuple):
    """Samples with their labels, or with the targets of a regression.

    x: (N, ...), or a tuple or dict of such arrays: uint8 or float32, (N, features), (N, C, L),
        (N, C, H, W) and others; or int64, which are indices
    y: int64, (N,) of samples or (N, ...) of their positions, classes counted from 0; or
        floating-point numbers, (N, ...)
    """

    x: Inputs
    y: np.ndarray


class Dataset(NamedTuple):
    """A training and a test split.

    classes: 0 if y are the targets of a regression
    note: a sentence for the user about how the data were found or divided, may be empty
    """

    name: str
    train: Split
    test: Split
    classes: int
    note: str


class DatasetRequest(NamedTuple):
    """The arguments of the function that loads a data set.

    argument: what the user wrote after the name and a colon (a file, a shape), may be empty
    directory: of data files, existing and downloaded
    ignore_index: the label that counts for nothing
    """

    argument: str
    directory: Path
    download: bool
    seed: int
    ignore_index: int | None


class DatasetEntry(NamedTuple):
    """An entry of DATASETS: the function that loads it, and its form on the command line.

    size: of a data set whose files may be missing: the shape of a sample, the number of classes,
        and the numbers of samples for training and for testing
    """

    load: Callable[[DatasetRequest], Dataset]
    form: str
    size: tuple[tuple[int, ...], int, int, int] | None = None


def hold_out(x: Inputs, y: np.ndarray, seed: int, name: str) -> tuple[Split, Split]:
    """Training and test splits; a pseudo-random fifth of each class is for testing.

    Rows are shuffled, then sorted by class, if they have one. Of these n rows, t are taken at even
    distances: row k is taken if (k + 1) t / n passes an integer. So exactly t rows are taken, and
    each class contributes its share, to within one row. Both splits keep the order of the rows.
    """
    n = len(y)
    if n < 2:
        raise ValueError(
            f"{name}: cannot hold out test data from {n} sample; give at least 2, or test data"
        )
    t = min(max(round(n * 0.2), 1), n - 1)
    order = keyed.permutation(keyed.key(seed, "hold-out", name), n)
    labels = y.ndim == 1 and y.dtype.kind in "iu"
    by_class = order[np.argsort(y[order], kind="stable")] if labels else order
    k = np.arange(n)
    taken = np.zeros(n, bool)
    taken[by_class] = (k + 1) * t // n > k * t // n
    train, test = (each(lambda array, rows=rows: array[rows], x) for rows in (~taken, taken))
    return Split(train, y[~taken]), Split(test, y[taken])

"""Checks of data sets, and of one-line errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nnmpi.data import Dataset, Loader, Standardiser, load


@contextmanager
def refused(
    *words: str, error: type[Exception] = ValueError
) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """The block raises such an error, whose message is one line with these words; " ... " in them
    stands for any text."""
    words = tuple(part for given in words for part in given.split(" ... "))
    with pytest.raises(error, match=r"\A.+\Z") as caught:
        yield caught
    message = str(caught.value)
    assert not [word for word in words if word not in message], message


def checked(spec: str, folder: Path) -> Dataset:
    """Loads a data set twice, and checks that it is valid and the same."""
    dataset = load(spec, data_dir=str(folder), seed=3)
    assert "\n" not in dataset.note
    for x, y in (dataset.train, dataset.test):
        assert x.dtype in ("uint8", "float32", "int64")
        assert x.ndim in (2, 4)
        assert y.dtype == "int64"
        assert len(x) > 0
        assert y[:].min() >= 0
        assert y[:].max() < dataset.classes
    again = load(spec, data_dir=str(folder), seed=3)
    for a, b in zip((*dataset.train, *dataset.test), (*again.train, *again.test), strict=True):
        np.testing.assert_array_equal(a, b)
    loader = Loader(dataset.train, 7, standardiser=Standardiser.of(dataset.train))
    assert sum(len(batch.y) for batch in loader.epoch(0)) == len(dataset.train.y)
    return dataset

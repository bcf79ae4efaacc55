"""Small files in the formats of the known data sets, and a check of one-line errors."""

import gzip
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from nnmpi.data import Dataset, Loader, Standardiser, cifar, load, mnist

STEMS = (*mnist.TRAIN, *mnist.TEST)


@contextmanager
def refused(*words: str) -> Iterator[pytest.ExceptionInfo[ValueError]]:
    """The block raises a ValueError whose message is one line with these words."""
    with pytest.raises(ValueError, match=r"\A.+\Z") as caught:
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


def idx_bytes(array: np.ndarray) -> bytes:
    sides = b"".join(n.to_bytes(4, "big") for n in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sides + array.astype("uint8").tobytes()


def images(n: int, offset: int = 0) -> np.ndarray:
    return (np.arange(n * 20).reshape(n, 4, 5) + offset) % 256


def write_mnist(folder: Path, counts: dict[str, int], suffix: str = "") -> Path:
    """IDX files for these stems with so many samples; labels count 0, 1, ..., 9, 0, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for stem, n in counts.items():
        content = idx_bytes(images(n) if "images" in stem else np.arange(n) % 10)
        packed = gzip.compress(content) if suffix == ".gz" else content
        (folder / f"{stem}{suffix}").write_bytes(packed)
    return folder


def four(train: int = 20, test: int = 10) -> dict[str, int]:
    return dict(zip(STEMS, (train, train, test, test), strict=True))


def records(n: int, first: int = 0) -> bytes:
    rows = (np.arange(n * cifar.RECORD).reshape(n, -1) * 7 + first) % 256
    rows[:, 0] = (np.arange(n) + first) % 10
    return rows.astype("uint8").tobytes()


def write_cifar(folder: Path, skip: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for i, name in enumerate((*cifar.TRAIN, cifar.TEST)):
        if name != skip:
            (folder / name).write_bytes(records(4, i))
    return folder


def tar_up(folder: Path, archive: Path) -> Path:
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, cifar.FOLDER)
    return archive

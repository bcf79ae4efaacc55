"""MNIST and Fashion-MNIST: four IDX files in one directory, with the same names in both sets.

An IDX file is a magic number, the shape, then bytes; it may be gzipped:

    0  0  8  d  | side 0 | ... | side d-1 | bytes
    \\_________/   big-endian 32-bit each
    magic: 8 = unsigned bytes, d = number of dimensions (3 for images, 1 for labels)
"""

import gzip
import math
from functools import partial
from pathlib import Path

import numpy as np

from nnmpi.addons.images.download import REMEDY, check_labels, fetch
from nnmpi.data.dataset import Dataset, DatasetEntry, DatasetRequest, DatasetSize, Split
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import reading

CLASSES = 10
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
GZIP = b"\x1f\x8b"
CONTENT_OF_MAGIC = {2049: "labels", 2051: "images"}


TORCHVISION = {"mnist": "MNIST/raw", "fashion-mnist": "FashionMNIST/raw"}
"""The folders in which torchvision stores the files of these data sets."""


def load(name: str, request: DatasetRequest) -> Dataset:
    """Loads MNIST or Fashion-MNIST: 60,000 training and 10,000 test images of 28 x 28 pixels.

    The four files are taken from the first directory that has all of them. If there is none, but a
    directory has the two files of test images (t10k-*), these are divided. Files of several
    directories are never combined: MNIST's and Fashion-MNIST's have the same names.
    """
    directory_of_set = request.directory / name
    directories = (directory_of_set, request.directory / TORCHVISION[name], request.directory)
    by_directory = [_find(directory) for directory in directories]
    complete = [files for files in by_directory if files.keys() >= {*TRAIN, *TEST}]
    if not complete and request.download:
        fetch(name, directory_of_set)
        complete = [_find(directory_of_set)]
    pairs = [files for files in by_directory if files.keys() == {*TEST}]
    if complete or pairs:
        files, read = (complete[0], _four) if complete else (pairs[0], _divided)
        return read(name, files)
    fullest = max(by_directory, key=len)
    missing = ", ".join(stem for stem in (*TRAIN, *TEST) if stem not in fullest)
    searched = ", ".join(map(shown, directories))
    raise ValueError(
        f"{name}: {missing} not found (with or without .gz) in any of {searched}; "
        "give their directory with --data-dir DIR, or fetch them with --download"
    )


def _find(directory: Path) -> dict[str, Path]:
    """Returns MNIST's files in a directory, by name without .gz; plain files come first."""
    stems = [(stem, stem + suffix) for suffix in (".gz", "") for stem in (*TRAIN, *TEST)]
    return {stem: directory / name for stem, name in stems if (directory / name).is_file()}


def _four(name: str, files: dict[str, Path]) -> Dataset:
    x, y = _read_pair(files, TRAIN)
    x_test, y_test = _read_pair(files, TEST)
    if x.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            f"{name}: {shown(files[TRAIN[0]])} has images of {x.shape[2:]} pixels and "
            f"{shown(files[TEST[0]])} of {x_test.shape[2:]}; {REMEDY}"
        )
    return Dataset(name, Split(x, y), Split(x_test, y_test), CLASSES, "")


def _divided(name: str, files: dict[str, Path]) -> Dataset:
    """Returns a data set of the 10,000 test images alone: the first four fifths are for
    training."""
    x, y = _read_pair(files, TEST)
    if len(y) < 2:
        raise ValueError(f"{shown(files[TEST[0]])} has {len(y)} image, too few to split; {REMEDY}")
    n = max(len(y) * 4 // 5, 1)
    note = (
        f"only the t10k pair found in {shown(files[TEST[0]].parent)}: first {n:,} images for "
        f"training, last {len(y) - n:,} for testing"
    )
    return Dataset(name, Split(x[:n], y[:n]), Split(x[n:], y[n:]), CLASSES, note)


def _read_pair(files: dict[str, Path], stems: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the images (N, 1, H, W) and the labels in the two of `files` that `stems` name;
    raises ValueError unless their numbers are equal."""
    images, labels = (files[stem] for stem in stems)
    x, y = read_idx(images, 3), read_idx(labels, 1)
    if len(x) != len(y):
        raise ValueError(
            f"{shown(images)} has {len(x):,} images but {shown(labels)} has {len(y):,} labels; "
            "replace them with files that belong together, or run again with --download"
        )
    with reading(labels, REMEDY):
        check_labels(y, CLASSES)
    return x[:, None], y.astype("int64")


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """The uint8 array with `ndim` dimensions in an IDX file, gzipped or not."""
    with reading(path, REMEDY):
        data = path.read_bytes()
        if data.startswith(GZIP):
            data = gzip.decompress(data)
        header = data[: 4 * (1 + ndim)]
        expected, magic = 0x0800 + ndim, int.from_bytes(header[:4], "big")
        if len(header) < 4 * (1 + ndim) or magic != expected:
            content = CONTENT_OF_MAGIC.get(magic, "neither images nor labels")
            raise ValueError(
                f"it begins with {len(header):,} bytes and magic number {magic} ({content}), "
                f"expected {expected} ({CONTENT_OF_MAGIC[expected]})"
            )
        shape = tuple(int(n) for n in np.frombuffer(header, ">u4", ndim, 4))
        length, count = len(data) - len(header), math.prod(shape)
        if not count:
            raise ValueError(f"it is empty: its shape is {shape}")
        if length != count:
            raise ValueError(f"its shape {shape} takes {count:,} bytes, and it has {length:,}")
        return np.frombuffer(data, np.uint8, offset=len(header)).reshape(shape).copy()


SIZE = DatasetSize((1, 28, 28), 10, 60_000, 10_000)
MNIST, FASHION_MNIST = (
    DatasetEntry(partial(load, name), name, lambda _: SIZE) for name in TORCHVISION
)

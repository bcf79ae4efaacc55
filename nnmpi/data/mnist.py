"""MNIST and Fashion-MNIST: four IDX files in one directory, with the same names in both sets."""

from pathlib import Path

from nnmpi.data import download, idx
from nnmpi.data.dataset import Dataset, Request, Split
from nnmpi.data.files import REMEDY
from nnmpi.quoting import shown

CLASSES = 10
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist(request: Request) -> Dataset:
    """Handwritten digits of 28 x 28 pixels: 60,000 for training and 10,000 for testing."""
    return _load("mnist", "MNIST/raw", request)


def fashion_mnist(request: Request) -> Dataset:
    """Articles of clothing, in the shape and number of MNIST."""
    return _load("fashion-mnist", "FashionMNIST/raw", request)


def _load(name: str, torchvision: str, request: Request) -> Dataset:
    """The four files from the first directory that has all of them, else the divided test pair.

    Files of several directories are never combined: those of MNIST and Fashion-MNIST have the same
    names, and only the directory distinguishes them.
    """
    own = request.directory / name
    directories = (own, request.directory / torchvision, request.directory)
    found = [_find(directory) for directory in directories]
    complete = [files for files in found if files.keys() >= {*TRAIN, *TEST}]
    if not complete and request.download:
        download.fetch(download.SOURCES[name], own)
        complete = [_find(own)]
    if complete:
        return _four(name, complete[0])
    pairs = [files for files in found if files.keys() == {*TEST}]
    if pairs:
        return _divided(name, pairs[0])
    best = max(found, key=len)
    missing = ", ".join(stem for stem in (*TRAIN, *TEST) if stem not in best)
    looked = ", ".join(map(shown, directories))
    raise ValueError(
        f"{name}: {missing} not found (with or without .gz) in any of {looked}; "
        "give their directory with --data-dir DIR, or fetch them with --download"
    )


def _find(directory: Path) -> dict[str, Path]:
    """The files among the four that are in a directory."""
    paths = {stem: (directory / stem, directory / f"{stem}.gz") for stem in (*TRAIN, *TEST)}
    hits = {stem: [path for path in pair if path.is_file()] for stem, pair in paths.items()}
    return {stem: pair[0] for stem, pair in hits.items() if pair}


def _four(name: str, files: dict[str, Path]) -> Dataset:
    x, y = idx.read_pair(files[TRAIN[0]], files[TRAIN[1]], CLASSES)
    x_test, y_test = idx.read_pair(files[TEST[0]], files[TEST[1]], CLASSES)
    if x.shape[1:] != x_test.shape[1:]:
        raise ValueError(
            f"{name}: {shown(files[TRAIN[0]])} has images of {x.shape[2:]} pixels and "
            f"{shown(files[TEST[0]])} of {x_test.shape[2:]}; {REMEDY}"
        )
    return Dataset(name, Split(x, y), Split(x_test, y_test), CLASSES, "")


def _divided(name: str, files: dict[str, Path]) -> Dataset:
    """The t10k pair only: its first four fifths for training, the rest for testing."""
    x, y = idx.read_pair(files[TEST[0]], files[TEST[1]], CLASSES)
    if len(y) < 2:
        raise ValueError(f"{shown(files[TEST[0]])} has {len(y)} image, too few to divide; {REMEDY}")
    n = max(len(y) * 4 // 5, 1)
    note = (
        f"only the t10k pair found in {shown(files[TEST[0]].parent)}: first {n:,} images for "
        f"training, last {len(y) - n:,} for testing"
    )
    return Dataset(name, Split(x[:n], y[:n]), Split(x[n:], y[n:]), CLASSES, note)

"""MNIST and Fashion-MNIST: four IDX files of the same names, found in one directory."""

from pathlib import Path

from nnmpi.data import download, idx
from nnmpi.data.dataset import Dataset, Request, Split

CLASSES = 10
TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def mnist(request: Request) -> Dataset:
    """Handwritten digits of 28 x 28 pixels: 60,000 for training and 10,000 for testing."""
    return _load("mnist", "MNIST/raw", request)


def fashion_mnist(request: Request) -> Dataset:
    """Articles of clothing, in the shape and the numbers of MNIST."""
    return _load("fashion-mnist", "FashionMNIST/raw", request)


def _load(name: str, torchvision: str, request: Request) -> Dataset:
    """The four files from the first place that has them all, else the test pair divided.

    Files are never gathered from several places: those of MNIST and of Fashion-MNIST
    have the same names, and only their directories tell them apart.
    """
    own = request.directory / name
    places = (own, request.directory / torchvision, request.directory)
    found = [_find(place) for place in places]
    whole = [files for files in found if files.keys() >= {*TRAIN, *TEST}]
    if not whole and request.download:
        download.fetch(download.SOURCES[name], own)
        whole = [_find(own)]
    if whole:
        return _four(name, whole[0])
    pairs = [files for files in found if files.keys() == {*TEST}]
    if pairs:
        return _divided(name, pairs[0])
    best = max(found, key=len)
    missing = ", ".join(stem for stem in (*TRAIN, *TEST) if stem not in best)
    looked = ", ".join(str(place) for place in places)
    raise ValueError(
        f"{name}: {missing} not found (with or without .gz) in any of {looked}; "
        "say where they are with --data-dir DIR, or fetch them with --download"
    )


def _find(place: Path) -> dict[str, Path]:
    """Those of the four files that are in a directory."""
    paths = {stem: (place / stem, place / f"{stem}.gz") for stem in (*TRAIN, *TEST)}
    hits = {stem: [path for path in pair if path.is_file()] for stem, pair in paths.items()}
    return {stem: pair[0] for stem, pair in hits.items() if pair}


def _four(name: str, files: dict[str, Path]) -> Dataset:
    train = idx.read_pair(files[TRAIN[0]], files[TRAIN[1]], CLASSES)
    test = idx.read_pair(files[TEST[0]], files[TEST[1]], CLASSES)
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ValueError(
            f"{name}: {files[TRAIN[0]]} has images of {train.x.shape[2:]} pixels and "
            f"{files[TEST[0]]} of {test.x.shape[2:]}; {idx.REMEDY}"
        )
    return Dataset(name, train, test, CLASSES, "")


def _divided(name: str, files: dict[str, Path]) -> Dataset:
    """The t10k pair alone: its first four fifths for training, the rest for testing."""
    x, y = idx.read_pair(files[TEST[0]], files[TEST[1]], CLASSES)
    if len(y) < 2:
        raise ValueError(f"{files[TEST[0]]} has {len(y)} image, too few to divide; {idx.REMEDY}")
    n = max(len(y) * 4 // 5, 1)
    note = (
        f"only the t10k pair found in {files[TEST[0]].parent}: first {n:,} images for training, "
        f"last {len(y) - n:,} for testing"
    )
    return Dataset(name, Split(x[:n], y[:n]), Split(x[n:], y[n:]), CLASSES, note)

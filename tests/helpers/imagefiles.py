"""Small files in the formats of MNIST and CIFAR-10."""

import gzip
import tarfile
from pathlib import Path

import numpy as np

from nnmpi.addons.images import cifar, mnist

STEMS = (*mnist.TRAIN, *mnist.TEST)


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

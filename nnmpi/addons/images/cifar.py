"""CIFAR-10 in its binary version: six files of records, in a folder or in the archive.

A record has 3,073 bytes: the label, then 32 x 32 red, green and blue values.
"""

import gzip
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from nnmpi.addons.images.download import REMEDY, check_labels, fetch
from nnmpi.data.dataset import Dataset, DatasetEntry, DatasetRequest, DatasetSize, Split
from nnmpi.options.quoting import shown
from nnmpi.options.user_files import reading

CLASSES = 10
RECORD = 1 + 3 * 32 * 32
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"


def cifar10(request: DatasetRequest) -> Dataset:
    """Loads CIFAR-10: photographs of 32 x 32 pixels, 50,000 to train and 10,000 to test."""
    directory = request.directory / "cifar10"
    folders = [place / sub for place in (directory, request.directory) for sub in (FOLDER, "")]
    archives = [directory / ARCHIVE, request.directory / ARCHIVE]
    folder = next((f for f in folders if not _missing(f)), None)
    archive = next((path for path in archives if path.is_file()), None)
    if folder is None and archive is None and request.download:
        fetch("cifar10", directory)
        archive = directory / ARCHIVE
    if folder is not None:
        content = {name: _read_file(folder / name) for name in (*TRAIN, TEST)}
    elif archive is not None:
        content = _read_archive(archive)
    else:
        fullest = min(folders, key=lambda f: len(_missing(f)))
        searched = ", ".join(shown(place) for place in (*folders, *archives))
        raise ValueError(
            f"cifar10: found neither {', '.join(_missing(fullest))} nor the archive (looked for "
            f"{searched}; the binary version is needed, not the Python one); give their directory "
            "with --data-dir DIR, or fetch them with --download"
        )
    train = _split([content[name] for name in TRAIN])
    return Dataset("cifar10", train, _split([content[TEST]]), CLASSES, "")


def _missing(folder: Path) -> list[str]:
    return [name for name in (*TRAIN, TEST) if not (folder / name).is_file()]


def _read_file(path: Path) -> np.ndarray:
    with reading(path, REMEDY):
        return _records(path.read_bytes())


def _read_archive(archive: Path) -> dict[str, np.ndarray]:
    """The records of the six files in the archive, read without unpacking to disk and to the end of
    gzip's stream, since only then its checksum is compared."""
    content: dict[str, np.ndarray] = {}
    with reading(archive, REMEDY), gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if name in (*TRAIN, TEST) and (file := tar.extractfile(member)):
                    with reading(archive / name, REMEDY):
                        content[name] = _records(file.read())
        stream.read()  # to the end, where gzip compares its checksum
        missing = [name for name in (*TRAIN, TEST) if name not in content]
        if missing:
            raise ValueError(f"it holds no {', '.join(missing)}")
    return content


def _records(data: bytes) -> np.ndarray:
    """The records of a file: uint8, (N, 3073)."""
    if not data or len(data) % RECORD:
        raise ValueError(
            f"it has {len(data):,} bytes, expected a multiple of {RECORD:,} (the original has "
            "30,730,000)"
        )
    records = np.frombuffer(data, np.uint8).reshape(-1, RECORD)
    check_labels(records[:, 0], CLASSES)
    return records


def _split(files: list[np.ndarray]) -> Split:
    x = np.concatenate([records[:, 1:] for records in files]).reshape(-1, 3, 32, 32)
    return Split(x, np.concatenate([records[:, 0] for records in files]).astype("int64"))


SIZE = DatasetSize((3, 32, 32), 10, 50_000, 10_000)
CIFAR10 = DatasetEntry(cifar10, "cifar10", lambda _: SIZE)

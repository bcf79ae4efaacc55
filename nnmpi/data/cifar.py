"""CIFAR-10 in its binary version: six files of records, in a folder or in the archive.

A record is 3,073 bytes: the label, then 32 x 32 red, green and blue values.
"""

import gzip
import tarfile
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np

from nnmpi.data import download, idx
from nnmpi.data.dataset import Dataset, Request, Split
from nnmpi.data.files import CHUNK, REMEDY, Bounded, RefusedError, check_ratio, read_array, reading
from nnmpi.quoting import shown

CLASSES = 10
RECORD = 1 + 3 * 32 * 32
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"


def cifar10(request: Request) -> Dataset:
    """Colour photographs of 32 x 32 pixels: 50,000 for training and 10,000 for testing."""
    own = request.directory / "cifar10"
    folders = [place / sub for place in (own, request.directory) for sub in (FOLDER, "")]
    archives = [own / ARCHIVE, request.directory / ARCHIVE]
    folder = next((f for f in folders if not _missing(f)), None)
    archive = next((path for path in archives if path.is_file()), None)
    if folder is None and archive is None and request.download:
        download.fetch(download.SOURCES["cifar10"], own)
        archive = own / ARCHIVE
    if folder is not None:
        with reading(folder):
            content = {name: _file(folder / name) for name in (*TRAIN, TEST)}
        return _dataset(folder, content)
    if archive is not None:
        return _dataset(archive, _read_archive(archive))
    best = min(folders, key=lambda f: len(_missing(f)))
    looked = ", ".join(shown(place) for place in (*folders, *archives))
    raise ValueError(
        f"cifar10: {', '.join(_missing(best))} not found, nor the archive (looked for {looked}; "
        "the binary version is needed, not the Python one); give their directory with "
        "--data-dir DIR, or fetch them with --download"
    )


def _file(path: Path) -> np.ndarray:
    """The bytes of a file."""
    size = path.stat().st_size
    _check_size(path, size)
    with path.open("rb") as file:
        return read_array(file, path, (size,))[0]


def _missing(folder: Path) -> list[str]:
    return [name for name in (*TRAIN, TEST) if not (folder / name).is_file()]


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo, archive: Path) -> np.ndarray:
    """The bytes of a file in the archive: as many as its header announces."""
    path = archive / PurePosixPath(member.name).name
    _check_size(path, member.size)
    check_ratio(path, (member.size,), member.size, archive.stat().st_size)
    file = tar.extractfile(member)
    array, there = read_array(file, path, (member.size,))
    if there < member.size:
        raise EOFError(f"{there:,} of {member.size:,} bytes of {path.name} are there")
    return array


def _read_archive(archive: Path) -> dict[str, np.ndarray]:
    """The content of the six files, read in one pass; nothing is unpacked to disk.

    The checksum of gzip is at the end of its stream, behind the last file, and is compared only
    when the stream has been read to its end.
    """
    content: dict[str, np.ndarray] = {}
    with reading(archive), gzip.open(archive) as stream:
        bounded = cast("IO[bytes]", Bounded(stream))
        with tarfile.open(fileobj=bounded, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                if member.isreg() and name in (*TRAIN, TEST):
                    content[name] = _member(tar, member, archive)
        while stream.read(CHUNK):
            pass
    missing = [name for name in (*TRAIN, TEST) if name not in content]
    if missing:
        raise ValueError(f"{shown(archive)} holds no {', '.join(missing)}; {REMEDY}")
    return content


def _dataset(place: Path, content: dict[str, np.ndarray]) -> Dataset:
    train = _split([_records(place / name, content[name]) for name in TRAIN])
    test = _split([_records(place / TEST, content[TEST])])
    return Dataset("cifar10", train, test, CLASSES, "")


def _check_size(path: Path, size: int) -> None:
    """Raises ValueError unless so many bytes are records."""
    if not size or size % RECORD:
        raise RefusedError(
            f"{shown(path)} has {size:,} bytes, expected a multiple of {RECORD:,} "
            f"(the original has 30,730,000); {REMEDY}"
        )


def _records(path: Path, data: np.ndarray) -> np.ndarray:
    """uint8, (N, 3073)."""
    records = data.reshape(-1, RECORD)
    idx.check_labels(records[:, 0], CLASSES, path)
    return records


def _split(parts: list[np.ndarray]) -> Split:
    x = np.concatenate([part[:, 1:] for part in parts]).reshape(-1, 3, 32, 32)
    return Split(x, np.concatenate([part[:, 0] for part in parts]).astype("int64"))

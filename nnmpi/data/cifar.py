"""CIFAR-10 in its binary version: six files of records, in a folder or in the archive.

A record is 3,073 bytes: the label, then 32 x 32 red, green and blue values.
"""

import gzip
import tarfile
from pathlib import Path, PurePosixPath

import numpy as np

from nnmpi.data import download, idx
from nnmpi.data.dataset import Dataset, Request, Split
from nnmpi.data.files import REMEDY, reading

CLASSES = 10
RECORD = 1 + 3 * 32 * 32
TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
TEST = "test_batch.bin"
FOLDER = "cifar-10-batches-bin"
ARCHIVE = "cifar-10-binary.tar.gz"
CHUNK = 1 << 20


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
            content = {name: (folder / name).read_bytes() for name in (*TRAIN, TEST)}
        return _dataset(folder, content)
    if archive is not None:
        return _dataset(archive, _read_archive(archive))
    best = min(folders, key=lambda f: len(_missing(f)))
    looked = ", ".join(str(place) for place in (*folders, *archives))
    raise ValueError(
        f"cifar10: {', '.join(_missing(best))} not found, nor the archive (looked for {looked}; "
        "the binary version is needed, not the Python one); give their directory with "
        "--data-dir DIR, or fetch them with --download"
    )


def _missing(folder: Path) -> list[str]:
    return [name for name in (*TRAIN, TEST) if not (folder / name).is_file()]


def _read_archive(archive: Path) -> dict[str, bytes]:
    """The content of the six files, read in one pass; nothing is unpacked to disk.

    The checksum of gzip is at the end of its stream, behind the last file, and is compared only
    when the stream has been read to its end.
    """
    content: dict[str, bytes] = {}
    with reading(archive), gzip.open(archive) as stream:
        with tarfile.open(fileobj=stream, mode="r:") as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                file = tar.extractfile(member) if member.isfile() else None
                if file is not None and name in (*TRAIN, TEST):
                    content[name] = file.read()
        while stream.read(CHUNK):
            pass
    missing = [name for name in (*TRAIN, TEST) if name not in content]
    if missing:
        raise ValueError(f"{archive} holds no {', '.join(missing)}; {REMEDY}")
    return content


def _dataset(place: Path, content: dict[str, bytes]) -> Dataset:
    train = _split([_records(place / name, content[name]) for name in TRAIN])
    test = _split([_records(place / TEST, content[TEST])])
    return Dataset("cifar10", train, test, CLASSES, "")


def _records(path: Path, data: bytes) -> np.ndarray:
    """uint8, (N, 3073)."""
    if not data or len(data) % RECORD:
        raise ValueError(
            f"{path} has {len(data):,} bytes, expected a multiple of {RECORD:,} "
            f"(the original has 30,730,000); {REMEDY}"
        )
    records = np.frombuffer(data, "uint8").reshape(-1, RECORD)
    idx.check_labels(records[:, 0], CLASSES, path)
    return records


def _split(parts: list[np.ndarray]) -> Split:
    x = np.concatenate([part[:, 1:] for part in parts]).reshape(-1, 3, 32, 32)
    return Split(x, np.concatenate([part[:, 0] for part in parts]).astype("int64"))

"""CIFAR-10 in its binary version: six files of records, in a folder or in the archive.

A record is 3,073 bytes: the label, then 32 x 32 red, green and blue values.
"""

import tarfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np

from nnmpi.data import download, idx
from nnmpi.data.dataset import Dataset, Request, Split

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
        return _dataset(folder, {name: _read(folder / name) for name in (*TRAIN, TEST)})
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


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error}; {idx.REMEDY}") from error


def _read_archive(archive: Path) -> dict[str, bytes]:
    """The content of the six files, read in one pass; nothing is unpacked to disk."""
    content: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name).name
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is not None and name in (*TRAIN, TEST):
                    content[name] = stream.read()
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{archive} cannot be read: {reason}; {idx.REMEDY}") from error
    missing = [name for name in (*TRAIN, TEST) if name not in content]
    if missing:
        raise ValueError(f"{archive} holds no {', '.join(missing)}; {idx.REMEDY}")
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
            f"(the original has 30,730,000); {idx.REMEDY}"
        )
    records = np.frombuffer(data, "uint8").reshape(-1, RECORD)
    idx.check_labels(records[:, 0], CLASSES, path)
    return records


def _split(parts: list[np.ndarray]) -> Split:
    x = np.concatenate([part[:, 1:] for part in parts]).reshape(-1, 3, 32, 32)
    return Split(x, np.concatenate([part[:, 0] for part in parts]).astype("int64"))

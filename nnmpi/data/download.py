"""Fetching the files of public data sets, checked against known SHA-256 sums.

A file is written under a temporary name, and gets its own only when its sum is
right: what stands in the directory is whole. Several processes may do this at
once, and the last one wins; where there are many ranks, let one of them go first.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request as Query
from urllib.request import urlopen
from uuid import uuid4

CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without a byte


class File(NamedTuple):
    """A file of a data set: its name, its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


class Source(NamedTuple):
    """Files, and the addresses (ending in /) that have them all, in order of preference."""

    bases: tuple[str, ...]
    files: tuple[File, ...]


def default_directory() -> Path:
    """`nnmpi` in the user's cache: $XDG_CACHE_HOME, or ~/.cache where that is not set."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")) / "nnmpi"


def fetch(source: Source, directory: Path) -> None:
    """Every file of the source that is not in the directory yet."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot make the directory {directory}: {error}; name another with --data-dir"
        ) from error
    for file in source.files:
        if not (directory / file.name).exists():
            _fetch(source.bases, file, directory)


def _fetch(bases: tuple[str, ...], file: File, directory: Path) -> None:
    """One file from the first address that gives it whole."""
    part = directory / f".{file.name}.{uuid4().hex}.part"
    failures = []
    for base in bases:
        try:
            _save(base + file.name, file, part)
            os.replace(part, directory / file.name)
            return
        except (OSError, HTTPException, ValueError) as error:
            failures.append(f"{base}{file.name}: {_reason(error)}")
        finally:
            part.unlink(missing_ok=True)
    raise ValueError(
        f"could not download {file.name} ({'; '.join(failures)}); check the network, "
        "or fetch it by other means and say where it is with --data-dir"
    )


def _save(url: str, file: File, part: Path) -> None:
    """The content of a URL in `part`, if it is what was expected."""
    digest, size = sha256(), 0
    with part.open("xb") as out:
        for chunk in _chunks(url):
            digest.update(chunk)
            size += len(chunk)
            out.write(chunk)
            if size > file.size:
                break
    if size != file.size:
        count = f"more than {file.size:,}" if size > file.size else f"{size:,}"
        raise ValueError(f"got {count} bytes, expected {file.size:,}; nothing kept")
    if digest.hexdigest() != file.sha256:
        raise ValueError(f"SHA-256 is {digest.hexdigest()}, expected {file.sha256}; nothing kept")


def _chunks(url: str) -> Iterator[bytes]:
    with urlopen(Query(url, headers={"User-Agent": "nnmpi"}), timeout=TIMEOUT) as reply:
        while chunk := reply.read(CHUNK):
            yield chunk


def _reason(error: Exception) -> str:
    """What went wrong, in one line."""
    if isinstance(error, HTTPError):
        return f"HTTP {error.code} {error.reason}"
    cause = error.reason if isinstance(error, URLError) else error
    return " ".join(str(cause).split()) or type(error).__name__


SOURCES = {
    "mnist": Source(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        (
            File(
                "train-images-idx3-ubyte.gz",
                9_912_422,
                "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                28_881,
                "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                1_648_877,
                "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                4_542,
                "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            ),
        ),
    ),
    "fashion-mnist": Source(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        (
            File(
                "train-images-idx3-ubyte.gz",
                26_421_880,
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            ),
            File(
                "train-labels-idx1-ubyte.gz",
                29_515,
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            ),
            File(
                "t10k-images-idx3-ubyte.gz",
                4_422_102,
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            ),
            File(
                "t10k-labels-idx1-ubyte.gz",
                5_148,
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
    "cifar10": Source(
        ("https://www.cs.toronto.edu/~kriz/",),
        (
            File(
                "cifar-10-binary.tar.gz",
                170_052_171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            ),
        ),
    ),
}

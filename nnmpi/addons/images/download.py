"""Files that are downloaded, and checked against SHA-256 sums.

A file is downloaded under a temporary name, and renamed once its checksum is right; so the files in
the directory are complete. Several processes may download at once: the last rename wins. With many
ranks, let one of them download first.
"""

import os
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import numpy as np

from nnmpi.options.quoting import shown

REMEDY = "delete it and run again with --download, or put a good copy in its place"
CHUNK = 1 << 20
TIMEOUT = 30.0  # seconds without receiving a byte


def check_labels(y: np.ndarray, classes: int) -> None:
    """Raises ValueError unless all labels are below `classes`."""
    if y.max() >= classes:
        row = int(np.argmax(y >= classes))
        raise ValueError(f"it has label {y[row]} in row {row:,}, expected 0 to {classes - 1}")


class DownloadSource(NamedTuple):
    """The URLs and checksums of a data set's files.

    urls: base URLs that end in /, the preferred one first
    sums: a line for each file: name, size in bytes, SHA-256
    """

    urls: tuple[str, ...]
    sums: str


def fetch(name: str, directory: Path) -> None:
    """Downloads the files of a data set that are not yet in the directory."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"cannot make the directory {shown(directory)}: {shown(error)}; "
            "name another with --data-dir"
        ) from error
    urls, sums = MIRRORS[name]
    for file, size, expected in map(str.split, sums.strip().splitlines()):
        if not (directory / file).exists():
            _fetch(urls, file, int(size), expected, directory)


def _fetch(urls: tuple[str, ...], file: str, size: int, expected: str, directory: Path) -> None:
    """Downloads one file, of `size` bytes and with the SHA-256 `expected`, from the first URL that
    offers it intact."""
    from http.client import HTTPException  # here, because importing it is slow

    part = directory / f".{file}.{uuid4().hex}.part"
    failures = []
    for url in urls:
        try:
            _save(url + file, size, expected, part)
            os.replace(part, directory / file)
            return
        except (OSError, HTTPException, ValueError) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            failures.append(f"{url}{file}: {reason}")
        finally:
            part.unlink(missing_ok=True)
    raise ValueError(
        f"could not download {file} ({'; '.join(failures)}); check the network, "
        "or fetch it by other means and say where it is with --data-dir"
    )


def _save(url: str, size: int, expected: str, part: Path) -> None:
    """Writes the content of a URL to `part`; raises ValueError if it does not have `size` bytes or
    the SHA-256 `expected`, OSError if it cannot be read."""
    from urllib.request import Request, urlopen

    digest, got = sha256(), 0
    request = Request(url, headers={"User-Agent": "nnmpi"})
    with part.open("xb") as out, urlopen(request, timeout=TIMEOUT) as reply:
        while chunk := reply.read(CHUNK):
            digest.update(chunk)
            got += len(chunk)
            if got > size:
                raise ValueError(f"it has more than the {size:,} bytes that are expected")
            out.write(chunk)
    if digest.hexdigest() != expected:
        raise ValueError(
            f"got {got:,} bytes with SHA-256 {digest.hexdigest()}, expected {expected}"
        )


MIRRORS = {
    "mnist": DownloadSource(
        (
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
        ),
        """
train-images-idx3-ubyte.gz 9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
train-labels-idx1-ubyte.gz 28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
t10k-images-idx3-ubyte.gz 1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
t10k-labels-idx1-ubyte.gz 4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
""",
    ),
    "fashion-mnist": DownloadSource(
        (
            "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",  # offers no https
        ),
        """
train-images-idx3-ubyte.gz 26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
train-labels-idx1-ubyte.gz 29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
t10k-images-idx3-ubyte.gz 4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
t10k-labels-idx1-ubyte.gz 5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
""",
    ),
    "cifar10": DownloadSource(
        ("https://www.cs.toronto.edu/~kriz/",),
        """
cifar-10-binary.tar.gz 170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
""",
    ),
}

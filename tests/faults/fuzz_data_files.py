"""Damaged files of data: IDX, gzip, tar, and npz of each compression."""

import bz2
import gzip
import io
import lzma
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from fuzzing import Fault, Outcome, damaged, refused
from helpers.imagefiles import four, idx_bytes, tar_up, write_cifar, write_mnist

from nnmpi import data
from nnmpi.addons.images import cifar, mnist
from nnmpi.data import Dataset

NOISE = np.random.default_rng(0).integers(0, 256, (20, 4, 5), "uint8")
IMAGES = idx_bytes(NOISE)


class Damaged(NamedTuple):
    """A file of a data set: its name, its content, and whether checksums find any change of it."""

    spec: str
    name: str
    content: Callable[[Path], bytes]
    is_checked: bool


def npz(
    method: int, changed: Callable[[bytes], bytes] = lambda member: member
) -> Callable[[Path], bytes]:
    def content(_: Path) -> bytes:
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w", method) as archive:
            for key, array in (("x", NOISE.reshape(20, 20)), ("y", np.arange(20) % 4)):
                member = io.BytesIO()
                np.save(member, array)
                archive.writestr(f"{key}.npy", changed(member.getvalue()))
        return out.getvalue()

    return content


def archive(folder: Path) -> bytes:
    """Of each file a record, mostly zeros, so that the archive is short."""
    source = write_cifar(folder / "source")
    for name in (*cifar.TRAIN, cifar.TEST):
        record = bytes([3]) + NOISE.tobytes()
        (source / name).write_bytes(record + bytes(cifar.RECORD - len(record)))
    return tar_up(source, folder / "made.tar.gz").read_bytes()


FILES = (
    Damaged("mnist", mnist.TRAIN[0], lambda _: IMAGES, False),
    Damaged("mnist", mnist.TRAIN[0], lambda _: gzip.compress(IMAGES), True),
    Damaged("mnist", mnist.TEST[1], lambda _: idx_bytes(np.arange(10)), False),
    Damaged("cifar10", cifar.ARCHIVE, archive, True),
    Damaged("x.npz", "x.npz", npz(zipfile.ZIP_STORED), True),
    Damaged("x.npz", "x.npz", npz(zipfile.ZIP_DEFLATED), True),
    Damaged("x.npz", "x.npz", npz(zipfile.ZIP_BZIP2), True),
    Damaged("x.npz", "x.npz", npz(zipfile.ZIP_LZMA), True),
    Damaged("x.npz", "x.npz", lambda _: lzma.compress(b"no archive"), True),
    Damaged("x.npz", "x.npz", lambda _: bz2.compress(b"no archive"), True),
)


def case(rng: np.random.Generator, folder: Path) -> Outcome:
    i = int(rng.integers(len(FILES)))
    file = FILES[i]
    if file.spec == "mnist":
        write_mnist(folder, four())
    content, whole = _good(i)
    if file.name == "x.npz" and rng.integers(2):  # damage that no checksum finds
        file = file._replace(is_checked=False)
        make = npz(zipfile.ZIP_STORED, lambda member: damaged(rng, member))
        (folder / file.name).write_bytes(make(folder))
    else:
        (folder / file.name).write_bytes(damaged(rng, content))
    names = (str(folder / file.name), "x.npz")
    found, outcome = refused(lambda: _load(file, folder), *names)
    if outcome.fault is None and found is not None and file.is_checked and found != whole:
        return Outcome(Fault.WRONG, f"a damaged {file.name} was read")
    return outcome._replace(what=f"file {i}: {outcome.what}")


@cache
def _good(i: int) -> tuple[bytes, bytes | None]:
    """The content of a file, and the samples in it."""
    with TemporaryDirectory() as name:
        folder, file = Path(name), FILES[i]
        content = file.content(folder)
        write_mnist(folder, four())
        (folder / file.name).write_bytes(content)
        return content, refused(lambda: _load(file, folder))[0]


def _load(file: Damaged, folder: Path) -> bytes:
    spec = str(folder / file.spec) if file.spec.endswith(".npz") else file.spec
    dataset: Dataset = data.load(spec, data_dir=str(folder))
    return b"".join(a.tobytes() for a in (*dataset.train, *dataset.test))

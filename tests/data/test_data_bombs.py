"""Small files that decompress to much: what is read is what the header announces, and no more."""

import gzip
import io
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers.datafiles import four, idx_bytes, images, refused, write_mnist

from nnmpi import data
from nnmpi.data import cifar, mnist

BOMB = 60 << 20
ZEROS = bytes(1 << 20)
ALLOWED = 12_000_000  # a few chunks


def zeros_after(head: bytes) -> bytes:
    """gzip data of about 60 KB: `head`, then BOMB zeros."""
    packed = io.BytesIO()
    with gzip.open(packed, "wb", compresslevel=1) as stream:
        stream.write(head)
        for _ in range(BOMB // len(ZEROS)):
            stream.write(ZEROS)
    return packed.getvalue()


def idx_file(content: bytes, before_zeros: bool = False) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        write_mnist(folder, four())
        (folder / mnist.TEST[0]).write_bytes(zeros_after(content) if before_zeros else content)
        return "mnist"

    return write


def archive(*headers: tarfile.TarInfo) -> Callable[[Path], str]:
    """A tar archive that ends, after these headers, with zeros."""
    head = b"".join(h.tobuf(tarfile.GNU_FORMAT) for h in headers)

    def write(folder: Path) -> str:
        (folder / cifar.ARCHIVE).write_bytes(zeros_after(head))
        return "cifar10"

    return write


def entry(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info


def short_npz(compression: int) -> Callable[[Path], str]:
    """An archive with x.npy: the header of a large array, and nothing behind it."""

    def write(folder: Path) -> str:
        path = folder / "short.npz"
        with zipfile.ZipFile(path, "w", compression) as zipped:
            zipped.writestr("x.npy", npy_header((10**6, 8)))
        return str(path)

    return write


def npz_file(head: bytes) -> Callable[[Path], str]:
    """An archive with x.npy: these bytes, then zeros."""

    def write(folder: Path) -> str:
        path = folder / "bomb.npz"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as zipped:
            with zipped.open("x.npy", "w") as stream:
                stream.write(head)
                for _ in range(BOMB // len(ZEROS)):
                    stream.write(ZEROS)
            zipped.writestr("y.npy", npy_header((3,)) + bytes(24))
        return str(path)

    return write


def npy_header(shape: tuple[int, ...]) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        out, {"descr": "<f8", "fortran_order": False, "shape": shape}
    )
    return out.getvalue()


HUGE = 2**32 - 1
LARGE = struct.pack(">iIII", 2051, HUGE, HUGE, HUGE)
CASES: dict[str, tuple[Callable[[Path], str], tuple[str, ...]]] = {
    "more than the shape of IDX": (
        idx_file(idx_bytes(images(10)), before_zeros=True),
        ("after its end", "takes 200"),
    ),
    "no IDX": (idx_file(b"", before_zeros=True), ("magic number 0",)),
    "an IDX shape for which the file is too small": (
        idx_file(gzip.compress(LARGE)),
        ("truncated", "cannot hold more", f"{HUGE**3:,}"),
    ),
    "names of files in tar": (
        archive(entry("x", BOMB, tarfile.GNUTYPE_LONGNAME), entry("x", 10)),
        ("is damaged", "names"),
    ),
    "another file in tar": (archive(entry("x", BOMB - 512)), ("holds no data_batch_1.bin",)),
    "a batch for which the archive is too small": (
        archive(entry(cifar.TRAIN[0], cifar.RECORD << 20)),
        ("truncated", "cannot hold more", f"{cifar.RECORD << 20:,}"),
    ),
    "a batch of half a record": (
        archive(entry(cifar.TRAIN[0], BOMB)),
        (cifar.TRAIN[0], f"{BOMB:,} bytes", "a multiple of 3,073"),
    ),
    "more than the shape of npy": (
        npz_file(npy_header((3, 1))),
        ("bomb.npz", "x.npy", "after its end", "takes 24"),
    ),
    "a header of npy": (
        npz_file(b"\x93NUMPY\x02\x00" + struct.pack("<I", BOMB)),
        ("bomb.npz", f"{BOMB:,} bytes of names"),
    ),
    "a shape in LZMA": (short_npz(zipfile.ZIP_LZMA), ("short.npz", "not compressed by deflate")),
    "a shape of npy": (npz_file(npy_header((10**9, 10**9))), ("bomb.npz", f"need {48 * 10**17:,}")),
}


@pytest.mark.parametrize("name", CASES)
def test_little_is_read_of_a_file_that_decompresses_to_much(name: str, tmp_path: Path) -> None:
    write, words = CASES[name]
    spec = write(tmp_path)
    tracemalloc.start()
    try:
        with refused(*words):
            data.load(spec, data_dir=str(tmp_path))
        assert tracemalloc.get_traced_memory()[1] < ALLOWED
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("descr", "shape", "words"),
    [
        ("<f4", "-" * 9500 + "1", "too many brackets or operators"),
        ("<f4", "1" + "**1" * 3000, "too many brackets or operators"),
        ("|V0", str((2**61, 1)), "elements of 0 bytes"),
        ("|S0", str((2**61, 1)), "elements of 0 bytes"),
    ],
)
def test_hostile_headers_are_refused(tmp_path: Path, descr: str, shape: str, words: str) -> None:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as zipped:
        zipped.writestr("x.npy", head)
        zipped.writestr("y.npy", head)
    with refused("a.npz: x.npy is damaged", words):
        data.load(str(tmp_path / "a.npz"))

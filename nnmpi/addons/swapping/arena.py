"""Arena: memory for arrays in a mapping of an unnamed file, whose pages move to disk and back."""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter, thread_time
from typing import Any, TypeAlias

import numpy as np

from nnmpi.addons.swapping.placement import Disk
from nnmpi.arrays import native
from nnmpi.options.amounts import amount
from nnmpi.options.quoting import shown

MEASURED = 1 << 27
"""Bytes that are written and read to measure a disk."""

Blocks: TypeAlias = list[tuple[int, int]]
"""(start, end) of each block, in bytes from the start of the arena."""

PIECES = 64
"""The number of pieces in which these bytes are written and read, as arrays would be."""

STRIDE = 23
"""The distance between successive pieces; coprime to PIECES, so that each is visited once."""

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def check() -> None:
    """Raises ValueError if system or folder do not allow to swap."""
    if native.kernel("arena") is None:
        why = native.missing() or "it needs Linux and compiled kernels, without NNMPI_NATIVE=0"
        raise ValueError(f"memory: activations cannot be swapped on this machine: {why}")
    wanted, folder = os.environ.get("TMPDIR"), tempfile.gettempdir()
    if wanted and not (os.path.isdir(wanted) and os.access(wanted, os.W_OK | os.X_OK)):
        raise ValueError(
            f"memory: activations cannot be swapped to {shown(wanted)}, as TMPDIR says: it is not "
            "a folder that can be written; create it, or set TMPDIR to another folder"
        )
    if _kind_of_files(folder) in IN_MEMORY:
        raise ValueError(
            f"memory: activations would be swapped to {folder}, which is itself in memory: set "
            "TMPDIR to a folder on a disk"
        )


def free_disk() -> int:
    """Returns the free bytes of the disk with swap files."""
    disk = os.statvfs(tempfile.gettempdir())
    return disk.f_bavail * disk.f_frsize


@contextmanager
def disk_errors(nbytes: int) -> Iterator[None]:
    """A context that turns a swap file's OSError into a ValueError with a remedy."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"memory: activations cannot be swapped to a file of {amount(nbytes)} in "
            f"{tempfile.gettempdir()}: {error.strerror}; make room, or set TMPDIR to another folder"
        ) from error


def _kind_of_files(folder: str) -> str:
    """Returns the type of a folder's file system, or ""."""
    device, mounts = os.stat(folder).st_dev, Path("/proc/self/mountinfo")
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines() if mounts.exists() else ():
        first, _, rest = line.partition(" - ")
        if first.split()[2] == wanted:
            return rest.split()[0]
    return ""


def _function(name: str) -> Callable[..., Any]:
    function = native.kernel(name)
    assert function is not None
    return function


class Arena:
    """Memory for `nbytes` bytes of arrays in a mapping of a file, whose pages can be moved to disk
    and back. Arrays that do not fit are on the heap. Each block has a tag, by which it is found
    again: the number of the unit whose backward pass needs it first."""

    def __init__(self, nbytes: int) -> None:
        open_file = tempfile.TemporaryFile  # closed at once: a mapping keeps an unnamed file alive
        with disk_errors(nbytes), open_file(prefix="nnmpi-swap-") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            self._handler = _function("arena")(file.fileno(), nbytes)
        self._nbytes = nbytes

    @contextmanager
    def allocating(self, tag: int, nbytes: float = 0.0) -> Iterator[None]:
        """Returns a context in which new arrays of this thread are allocated in the arena, with
        this tag. Pages of freed arrays stay in memory to be reused, unless these pages and the new
        blocks would have more than `nbytes` bytes together."""
        _function("tag")(self._handler, tag, round(nbytes))
        handler = _function("use")(self._handler)
        try:
            yield
        finally:
            _function("use")(handler)

    def retag(self, tag: int, array: np.ndarray) -> None:
        """Changes the tag of an array's block, if it is in the arena."""
        _function("retag")(self._handler, array.__array_interface__["data"][0], tag)

    def blocks(self, tag: int) -> Blocks:
        """Returns (start, end) of each block with this tag."""
        tagged: Blocks = _function("blocks")(self._handler, tag)
        return tagged

    def trim(self, nbytes: float) -> None:
        """Returns freed memory to the system, except for at most `nbytes`."""
        with disk_errors(self._nbytes):
            _function("trim")(self._handler, max(round(nbytes), 0))

    def write_out(self, blocks: Blocks) -> None:
        """Writes changed pages of blocks to disk, and frees them; addresses stay valid."""
        self._each(("start_write", "end_write"), blocks)

    def read_in(self, blocks: Blocks) -> None:
        """Reads blocks back from disk; returns when they are in memory."""
        self._each(("start_read", "end_read"), blocks)

    def _each(self, names: Iterable[str], blocks: Blocks) -> None:
        with disk_errors(self._nbytes):
            for name in names:
                for start, end in blocks:
                    _function(name)(self._handler, start, end)


def measured_disk() -> Disk:
    """Measures the disk of arenas, and what a byte costs the computing thread, at best."""
    with disk_errors(MEASURED):
        disks = [_measure(Arena(MEASURED)) for _ in range(3)]
    write, read, *_ = map(max, zip(*disks, strict=True))
    return Disk(write, read, min(d.paging for d in disks), min(d.touch for d in disks))


def _measure(arena: Arena) -> Disk:
    with arena.allocating(0):
        array = np.empty(MEASURED, np.uint8)
    blocks = [*pairwise(range(0, MEASURED + 1, MEASURED // PIECES))]

    def fill(array: np.ndarray, value: int) -> None:
        # the next piece is far away, as in passes over a model: in sequence the system would make
        # room for many pages at a time, in a quarter of the time
        for i in range(PIECES):
            start, end = blocks[i * STRIDE % PIECES]
            array[start:end] = value

    first, again = (_seconds(partial(fill, array, value)) for value in (1, 2))
    began = thread_time()
    write, read = (_seconds(partial(act, blocks)) for act in (arena.write_out, arena.read_in))
    cpu_seconds = thread_time() - began
    del array
    touch = max(first - again, 0.0) + _seconds(partial(arena.trim, 0))
    return Disk(MEASURED / write, MEASURED / read, cpu_seconds / MEASURED, touch / MEASURED)


def _seconds(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began

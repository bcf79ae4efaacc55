"""Arena: memory for arrays in a mapping of a file that has no name; how fast its disk is."""

import mmap
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

from nnmpi.arrays import native
from nnmpi.options.quoting import shown
from nnmpi.parallel.arrangement.residence import Disk
from nnmpi.sim.drawing.tables import amount

MEASURED = 1 << 27
"""Bytes that are written and read to measure a disk."""

Blocks: TypeAlias = list[tuple[int, int]]
"""Where each begins and ends, in bytes."""

PAGE = mmap.PAGESIZE

PIECES = 64
"""In which they are written and read, as arrays are."""

STRIDE = 23
"""It has no divisor in common with PIECES, so that each is met."""

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def check() -> None:
    """Raises ValueError if there can be no arena here."""
    if native.kernel("arena") is None:
        why = native.missing() or "it needs Linux and compiled kernels, without NNMPI_NATIVE=0"
        raise ValueError(f"memory: activations cannot be swapped here: {why}")
    wanted, folder = os.environ.get("TMPDIR"), tempfile.gettempdir()
    if wanted and not (os.path.isdir(wanted) and os.access(wanted, os.W_OK | os.X_OK)):
        raise ValueError(
            f"memory: activations cannot be swapped to {shown(wanted)}, which TMPDIR names: it is "
            "no folder that can be written; make it, or set TMPDIR to another folder"
        )
    if _kind_of_files(folder) in IN_MEMORY:
        raise ValueError(
            f"memory: activations would be swapped to {folder}, which is in memory itself: set "
            "TMPDIR to a folder on a disk"
        )


def free_disk() -> int:
    """The bytes that are free where arenas are."""
    disk = os.statvfs(tempfile.gettempdir())
    return disk.f_bavail * disk.f_frsize


@contextmanager
def in_one_line(nbytes: int) -> Iterator[None]:
    """Turns an OSError about a file of so many bytes into a ValueError that says what to do."""
    try:
        yield
    except OSError as error:
        raise ValueError(
            f"memory: activations cannot be swapped to a file of {amount(nbytes)} in "
            f"{tempfile.gettempdir()}: {error.strerror}; make room, or set TMPDIR to another folder"
        ) from error


def _kind_of_files(folder: str) -> str:
    """The type of the file system of a folder, as Linux lists it; empty if it does not."""
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
    """Memory for arrays of so many bytes in all; what has no room in it is in the heap.

    A tag says of a block which unit needs it first in its backward pass.
    """

    def __init__(self, nbytes: int) -> None:
        made = tempfile.TemporaryFile  # it is there while it is mapped
        with in_one_line(nbytes), made(prefix="nnmpi-swap-") as file:
            os.posix_fallocate(file.fileno(), 0, nbytes)
            self._handler = _function("arena")(file.fileno(), nbytes)
        self._nbytes, self._address = nbytes, _function("address")(self._handler)

    @contextmanager
    def allocating(self, tag: int, nbytes: float = 0.0) -> Iterator[None]:
        """Within it the arrays that this thread makes lie here; with free memory that keeps its
        pages they take no more than this, as long as there is some."""
        _function("tag")(self._handler, tag, round(nbytes))
        handler = _function("use")(self._handler)
        try:
            yield
        finally:
            _function("use")(handler)

    def retag(self, tag: int, array: np.ndarray) -> None:
        """The tag of the block of an array, if it lies here."""
        _function("retag")(self._handler, array.__array_interface__["data"][0], tag)

    def blocks(self, tag: int) -> Blocks:
        """Where the blocks of a tag begin and end."""
        tagged: Blocks = _function("blocks")(self._handler, tag)
        return tagged

    def places(self, arrays: Iterable[np.ndarray]) -> Blocks:
        """Where the pages of arrays are that lie here, in order; neighbours are joined."""
        joined: Blocks = []
        for start, end in sorted(map(self._bytes_of, arrays)):
            first, stop = start // PAGE * PAGE, -(-end // PAGE) * PAGE
            if not 0 <= start < self._nbytes:  # it is short, and in the heap
                continue
            if joined and first <= joined[-1][1]:
                first = joined.pop()[0]
            joined.append((first, stop))
        return joined

    def forget(self, array: np.ndarray) -> None:
        """The numbers of an array are not needed any more: pages that are its own become 0."""
        start, end = self._bytes_of(array)
        first, stop = -(-start // PAGE) * PAGE, end // PAGE * PAGE
        if 0 <= start < self._nbytes and first < stop:
            self._each(("forget",), [(first, stop)])

    def singly(self, blocks: Blocks) -> None:
        """A page there that is touched brings no others to memory."""
        self._each(("singly",), blocks)

    def _bytes_of(self, array: np.ndarray) -> tuple[int, int]:
        start = array.__array_interface__["data"][0] - self._address
        return start, start + array.nbytes

    def trim(self, nbytes: float) -> None:
        """Drops pages of freed memory, so that at most this many bytes of it keep theirs."""
        with in_one_line(self._nbytes):
            _function("trim")(self._handler, max(round(nbytes), 0))

    def start_write(self, blocks: Blocks) -> None:
        """The system begins to write pages that have changed."""
        self._each(("start_write",), blocks)

    def end_write(self, blocks: Blocks) -> None:
        """Waits for that, and takes the pages out of memory."""
        self._each(("end_write",), blocks)

    def start_read(self, blocks: Blocks) -> None:
        """The system begins to read pages."""
        self._each(("start_read",), blocks)

    def write_out(self, blocks: Blocks) -> None:
        """Writes pages that have changed, and takes them out of memory."""
        self._each(("start_write", "end_write"), blocks)

    def read_in(self, blocks: Blocks) -> None:
        """Has pages in memory."""
        self._each(("start_read", "end_read"), blocks)

    def _each(self, names: Iterable[str], blocks: Blocks) -> None:
        with in_one_line(self._nbytes):
            for name in names:
                for start, end in blocks:
                    _function(name)(self._handler, start, end)


def measured_disk() -> Disk:
    """How fast the disk of arenas is, and how long pages take; the best of three times."""
    with in_one_line(MEASURED):
        both = [_measure(Arena(MEASURED)) for _ in range(3)]
    write, read, *_ = map(max, zip(*both, strict=True))
    return Disk(write, read, min(d.paging for d in both), min(d.touch for d in both))


def mixed(blocks: Blocks) -> Blocks:
    """The blocks ordered so that the next one is far away, as in passes: in sequence the system
    would make room for many pages at a time, in a quarter of the time."""
    return [blocks[i * STRIDE % len(blocks)] for i in range(len(blocks))]


def _fill(array: np.ndarray, blocks: Blocks, value: int) -> None:
    for start, end in blocks:
        array[start:end] = value


def _measure(arena: Arena) -> Disk:
    with arena.allocating(0):
        array = np.empty(MEASURED, np.uint8)
    blocks = [*pairwise(range(0, MEASURED + 1, MEASURED // PIECES))]

    first, again = (_seconds(partial(_fill, array, mixed(blocks), value)) for value in (1, 2))
    began = thread_time()
    write, read = (_seconds(partial(act, blocks)) for act in (arena.write_out, arena.read_in))
    taken = thread_time() - began
    del array
    touch = max(first - again, 0.0) + _seconds(partial(arena.trim, 0))
    return Disk(MEASURED / write, MEASURED / read, taken / MEASURED, touch / MEASURED)


def _seconds(act: Callable[[], object]) -> float:
    began = perf_counter()
    act()
    return perf_counter() - began

"""The safetensors file of a rank: where each number is, and how it is written.

    header | values of all ranges | sums of the first range | sums of the second one | arrays

Widest types come first; within a type that is the order, in which ranks read them again. A block of
1 MB has a digest of its own, the header's block too.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from nnmpi.dtypes import named
from nnmpi.nn.place import whole
from nnmpi.parallel.model.snapshot import SavedRange
from nnmpi.run.checkpoints.divide import RangeType
from nnmpi.run.checkpoints.manifest import ArrayInFile, FileRange, InFile
from nnmpi.run.files.saving import Info, header_of

T = TypeVar("T")
BLOCK = 1 << 20  # bytes that have a digest
PIECE = 8 << 20  # bytes that are written at once


class CancelledError(Exception):
    """The run has abandoned the checkpoint."""


class RankFile(NamedTuple):
    """What a file has: its header, and the place of each number."""

    name: str
    header: bytes
    ranges: tuple[FileRange, ...]
    arrays: tuple[ArrayInFile, ...]
    size: int


def name_of(rank: int) -> str:
    """The name of the file of a rank."""
    return f"rank-{rank:05d}.safetensors"


def laid_out(rank: int, ranges: Sequence[RangeType], arrays: Sequence[np.ndarray]) -> RankFile:
    """The file of a rank that writes these ranges, and arrays that the run has told."""
    index = [Info(_name(one), named(one.values), (one.hi - one.lo,)) for one in ranges]
    index += [
        Info(f"{_name(one)}.{name}", named(dtype), (one.hi - one.lo,))
        for one in ranges
        for name, dtype in one.sums.items()
    ]
    index += [Info(f"about.{i}", a.dtype, a.shape) for i, a in enumerate(arrays)]
    header, starts = header_of(Path(name_of(rank)), index, {"format": "nnmpi.checkpoint"})
    at = iter(starts)
    values = [InFile(one.values, next(at)) for one in ranges]
    found = [
        FileRange(
            *(one.place, one.axes, one.lo, one.hi, one.steps, there),
            {name: InFile(dtype, next(at)) for name, dtype in one.sums.items()},
        )
        for one, there in zip(ranges, values, strict=True)
    ]
    others = [ArrayInFile(a.dtype.name, next(at), a.shape) for a in arrays]
    ends = (
        start + info.dtype.itemsize * int(np.prod(info.shape, dtype=np.int64))
        for info, start in zip(index, starts, strict=True)
    )
    return RankFile(
        name_of(rank), header, tuple(found), tuple(others), max(ends, default=len(header))
    )


def _name(one: RangeType) -> str:
    """The name of a range in the header, for who looks at it; the manifest says what it is."""
    place = one.place
    cut = "" if place.part == whole(place.shape) else f"{[list(side) for side in place.part]}"
    return f"{place.path}{cut}[{one.lo}:{one.hi}]"


def contents_of(
    file: RankFile, owned: Sequence[SavedRange], arrays: Sequence[np.ndarray]
) -> list[memoryview]:
    """The bytes of the file, one behind the other; nothing but the header is copied."""
    there = dict[int, np.ndarray]()
    for one in file.ranges:
        own = next(
            own for own in owned if own.place == one.place and own.lo <= one.lo and one.hi <= own.hi
        )
        part = slice(one.lo - own.lo, one.hi - own.lo)
        there[one.values.at] = own.values[part]
        there |= {place.at: own.sums[name][part] for name, place in one.sums.items()}
    there |= {one.at: array for one, array in zip(file.arrays, arrays, strict=True) if array.size}
    rows = (there[at] for at in sorted(there))
    little = (row.astype(row.dtype.newbyteorder("<"), copy=False) for row in rows)
    return [memoryview(file.header), *(_bytes(row) for row in little)]


def _bytes(array: np.ndarray) -> memoryview:
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def write_file(path: Path, views: Sequence[memoryview], stop: threading.Event) -> list[str]:
    """Writes a new file, which is on disk then; returns the digest of each block.

    Threads compute them while the file is written: one alone is slower than a disk. Raises
    CancelledError after a `stop`.
    """
    size = sum(map(len, views))
    middle = size // BLOCK // 2 * BLOCK
    halves = [
        in_thread(partial(block_digests, _pieces(views, stop, *half)))
        for half in ((0, middle), (middle, size))
    ]
    with path.open("xb", buffering=BLOCK) as file:  # larger pieces are written without a copy
        for piece in _pieces(views, stop, 0, size):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return [digest for half in halves for digest in half.result()]


def _pieces(
    views: Sequence[memoryview], stop: threading.Event, lo: int, hi: int
) -> Iterator[memoryview]:
    """Bytes lo to hi - 1 of what lies one behind the other."""
    ends = accumulate(map(len, views))
    for view, end in zip(views, ends, strict=True):
        first = end - len(view)
        for start in range(max(lo, first), min(hi, end), PIECE):
            if stop.is_set():
                raise CancelledError
            yield view[start - first : min(start + PIECE, hi, end) - first]


def block_digests(views: Iterator[memoryview]) -> list[str]:
    """The SHA-256 of each block of what lies one behind the other."""
    found, digest, room = list[str](), sha256(), BLOCK
    for view in views:
        while len(view) >= room:
            digest.update(view[:room])
            found.append(digest.hexdigest())
            view, digest, room = view[room:], sha256(), BLOCK
        digest.update(view)
        room -= len(view)
    return [*found, digest.hexdigest()] if room < BLOCK else found


def in_thread(f: Callable[[], T]) -> Future[T]:
    """The result of f, which a thread computes; the end of the process does not wait for it."""
    future = Future[T]()

    def run() -> None:
        try:
            future.set_result(f())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="nnmpi checkpoint", daemon=True).start()
    return future

"""The safetensors file of a rank: who writes what, where each element is, and how it is written.

Where several ranks have copies of the same elements, each of them writes a part. All ranks compute
the same division, from a list of what every rank has. Divided are the bytes of everything that the
same ranks have, one tensor behind the other.

    has      rank 0  [ w w w w | b b ]      writes   rank 0  [ w w w . | . . ]
             rank 1  [ w w w w | b b ]               rank 1  [ . . . w | b b ]
             rank 2  [ v v v ]                       rank 2  [ v v v ]

    header | values of all ranges | optimizer state of range 0 | of range 1 | arrays

The widest types come first; within a type this is the order, in which ranks read the file again.
Each block of 1 MB has its own digest, the first block with the header too.
"""

import math
import os
import platform
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.comm import OperatingSystem
from nnmpi.io.checkpoints.forms import ArrayInFile, InFile, SavedFile
from nnmpi.io.files.atomic import sync
from nnmpi.io.files.saving import HeaderRow, header_of
from nnmpi.nn.place import Part, Place, whole
from nnmpi.parallel.model.snapshot import SavedRange, StateRange, bytes_of

BLOCK = 1 << 20  # bytes that have a digest

LEAST = 1 << 20
"""Slices of fewer bytes are not cut: one of the ranks that have it writes all of it."""


class CancelledError(Exception):
    """Raised in the thread that writes a checkpoint after the run has abandoned it."""


# ---- who writes what


def divided(
    owned: Sequence[Sequence[StateRange[str]]], least: int = LEAST
) -> list[list[StateRange[str]]]:
    """The ranges that each rank writes, in the order of tensors: each element is written by exactly
    one of the ranks that have it.

    Buffers and frozen parameters are not cut, and small ones are written by the first rank that has
    them: copies of buffers may differ where ranks run at their own pace.
    """
    shared = defaultdict[tuple[int, ...], list[tuple[int, StateRange[str]]]](list)
    of_ranks: list[list[tuple[int, StateRange[str]]]] = [[] for _ in owned]
    for number, (saved, ranks) in enumerate(_shared_slices(owned)):
        is_first = not saved.is_trained and bytes_of(saved) < least
        (of_ranks[ranks[0]] if is_first else shared[ranks]).append((number, saved))
    for ranks, slices in shared.items():
        total, at = sum(bytes_of(saved) for _, saved in slices), 0
        ends = [total * k // len(ranks) for k in range(1, len(ranks))]
        for number, saved in slices:
            cuts = [0, *(_cut(end - at, saved, least) for end in ends), saved.hi - saved.lo]
            for rank, (a, b) in zip(ranks, pairwise(cuts), strict=True):
                if a < b:
                    of_ranks[rank].append(
                        (number, saved._replace(lo=saved.lo + a, hi=saved.lo + b))
                    )
            at += bytes_of(saved)
    return [[saved for _, saved in sorted(of_rank, key=lambda row: row[0])] for of_rank in of_ranks]


def _cut(byte: int, saved: StateRange[str], least: int) -> int:
    """How many elements of a range lie before a byte; all or none if the range is not cut."""
    n, size = saved.hi - saved.lo, bytes_of(saved)
    if size < least or not saved.is_trained:
        return n if 2 * byte > size else 0
    return min(max(byte * n // size, 0), n)


def _shared_slices(
    owned: Sequence[Sequence[StateRange[str]]],
) -> Iterator[tuple[StateRange[str], tuple[int, ...]]]:
    """Yields slices of each part of a tensor, each with the ranks that have the whole slice."""
    of_parts = defaultdict[tuple[str, Part], list[tuple[int, StateRange[str]]]](list)
    for rank, ranges in enumerate(owned):
        for saved in ranges:
            of_parts[saved.path, saved.part].append((rank, saved))
    for holders in of_parts.values():
        ends = sorted({end for _, saved in holders for end in (saved.lo, saved.hi)})
        for lo, hi in pairwise(ends):
            owners = [(rank, saved) for rank, saved in holders if saved.lo <= lo and hi <= saved.hi]
            if owners:
                ranks = tuple(dict.fromkeys(rank for rank, _ in owners))
                yield owners[0][1]._replace(lo=lo, hi=hi), ranks


# ---- the file


class RankFile(NamedTuple):
    """The file of a rank before its digests are known: its header, its ranges, and the arrays of
    the run's facts."""

    saved: SavedFile
    header: bytes
    arrays: tuple[ArrayInFile, ...]


class FileWritten(NamedTuple):
    """The size and block digests of a rank's written file; or the problem, if it could not be
    written."""

    problem: str
    size: int = 0
    blocks: Sequence[str] = ()


def name_of(rank: int) -> str:
    """The name of the file of a rank."""
    return f"rank-{rank:05d}.safetensors"


def laid_out(
    rank: int, ranges: Sequence[StateRange[str]], arrays: Sequence[tuple[str, tuple[int, ...]]]
) -> RankFile:
    """The layout of the file of a rank that writes these ranges, and arrays of these (type,
    shape)."""
    index = [HeaderRow(_name(held), named(held.values), (held.hi - held.lo,)) for held in ranges]
    index += [
        HeaderRow(f"{_name(held)}.{name}", named(dtype), (held.hi - held.lo,))
        for held in ranges
        for name, dtype in held.sums.items()
    ]
    index += [HeaderRow(f"about.{i}", named(name), shape) for i, (name, shape) in enumerate(arrays)]
    header, starts = header_of(Path(name_of(rank)), index, {"format": "nnmpi.checkpoint"})
    at = iter(starts)
    values = [InFile(held.values, next(at)) for held in ranges]
    in_file = [
        StateRange(
            *held[:7], value, {name: InFile(dtype, next(at)) for name, dtype in held.sums.items()}
        )
        for held, value in zip(ranges, values, strict=True)
    ]
    others = [ArrayInFile(name, next(at), shape) for name, shape in arrays]
    ends = (
        start + info.dtype.itemsize * math.prod(info.shape)
        for info, start in zip(index, starts, strict=True)
    )
    saved = SavedFile(name_of(rank), max(ends, default=len(header)), (), tuple(in_file))
    return RankFile(saved, header, tuple(others))


def _name(saved: StateRange[str]) -> str:
    """The name of a range in the header, for people who look at it; the manifest has the same
    facts."""
    cut = "" if saved.part == whole(saved.shape) else f"{[list(side) for side in saved.part]}"
    return f"{saved.path}{cut}[{saved.lo}:{saved.hi}]"


def content_of(
    file: RankFile, owned: Sequence[SavedRange], arrays: Sequence[np.ndarray]
) -> memoryview:
    """A copy of what a rank writes, as the bytes of its file."""
    content = np.empty(file.saved.bytes, np.uint8)
    by_place = defaultdict[Place, list[SavedRange]](list)
    for row in owned:
        by_place[row.place].append(row)

    def put(at: int, row: np.ndarray) -> None:
        target = content[at : at + row.nbytes].view(row.dtype.newbyteorder("<"))
        target[...] = row.reshape(-1)

    put(0, np.frombuffer(file.header, np.uint8))
    for saved in file.saved.ranges:
        held = next(
            held for held in by_place[saved.place] if held.lo <= saved.lo and saved.hi <= held.hi
        )
        part = slice(saved.lo - held.lo, saved.hi - held.lo)
        put(saved.values.at, held.values[part])
        for name, place in saved.sums.items():
            put(place.at, held.sums[name][part])
    for place_in_file, array in zip(file.arrays, arrays, strict=True):
        put(place_in_file.at, array)
    return content.data


def prepared(
    folder: Path,
    rank: int,
    owned: Sequence[SavedRange],
    has: Sequence[Sequence[StateRange[str]]],
    arrays: Sequence[np.ndarray],
    stop: threading.Event,
) -> Callable[[], FileWritten]:
    """Copies this rank's part of a checkpoint, and returns a function that writes it to its
    file."""
    try:
        file = laid_out(rank, divided(has)[rank], [(a.dtype.name, a.shape) for a in arrays])
        content = content_of(file, owned, arrays)
    except MemoryError as error:
        return partial(FileWritten, reason_of(error))

    def write() -> FileWritten:
        try:
            blocks = write_file(folder / file.saved.name, content, stop)
            sync(folder)
        except (OSError, MemoryError) as error:
            return FileWritten(reason_of(error))
        return FileWritten("", file.saved.bytes, blocks)

    return write


def write_file(path: Path, content: memoryview, stop: threading.Event) -> list[str]:
    """Writes a new file and syncs it to disk; returns the digest of each block.

    Two threads write and hash a half each: one alone is slower than a disk. Raises CancelledError
    after a `stop`.
    """
    blocks, in_thread = -(-len(content) // BLOCK), OperatingSystem.in_thread
    with path.open("xb", buffering=0) as file:
        halves = [
            in_thread(partial(_write_blocks, file.fileno(), content, range(lo, hi), stop))
            for lo, hi in pairwise((0, blocks // 2, blocks))
        ]
        wait(halves)  # both: if one fails, the other must not write to a closed file
        digests = [digest for half in halves for digest in half.result()]
        os.fsync(file.fileno())
    return digests


def _write_blocks(
    file: int, content: memoryview, numbers: Iterable[int], stop: threading.Event
) -> list[str]:
    """Writes the blocks with these numbers; returns their digests."""
    digests = list[str]()
    for at in (number * BLOCK for number in numbers):
        if stop.is_set():
            raise CancelledError
        block = content[at : at + BLOCK]
        done = 0
        while done < len(block):
            done += os.pwrite(file, block[done:], at + done)
        if hasattr(os, "posix_fadvise"):  # not on macOS. Starts the disk now instead of at fsync
            os.posix_fadvise(file, at, len(block), os.POSIX_FADV_DONTNEED)
        digests.append(sha256(block).hexdigest())
    return digests


def reason_of(error: Exception) -> str:
    """The host name and the reason of a system error, for a message."""
    if isinstance(error, OSError):
        return f"{platform.node()}: {error.strerror or error}"
    return f"{platform.node()}: out of memory"

"""The safetensors file of a rank: divides the state among ranks, lays out the file and writes it.

If several ranks have copies of the same elements, each of them writes a part. All ranks compute the
same division from a list of the arrays of every rank. Tensors that the same ranks have are divided
as one sequence of bytes.

    has      rank 0  [ w w w w | b b ]      writes   rank 0  [ w w w . | . . ]
             rank 1  [ w w w w | b b ]               rank 1  [ . . . w | b b ]
             rank 2  [ v v v ]                       rank 2  [ v v v ]

    header | array 0 | array 1 | ...

The widest types come first; within a type arrays are in the order of the list of state, in which
ranks read the file again. Each block of 1 MB has its own digest; the first block includes the
header.
"""

import os
import platform
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import wait
from functools import partial
from hashlib import sha256
from itertools import pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnmpi.arrays.dtypes import named
from nnmpi.comm import OperatingSystem
from nnmpi.io.files.atomic import sync
from nnmpi.io.files.saving import HeaderRow, header_of
from nnmpi.nn.place import Box, Place, StateArray

BLOCK = 1 << 20  # bytes of a block with a digest of its own

LEAST = 1 << 20
"""Slices of fewer bytes are not divided: one of the ranks that have a copy writes all of it."""

ABOUT = "about"
"""Arrays `about 0`, `about 1`, ... in the file of rank 0 belong to the facts about the run."""


class CancelledError(Exception):
    """Raised in the thread that writes a checkpoint after the run has abandoned it."""


# ---- the division among ranks


def divided(owned: Sequence[Sequence[StateArray]], least: int = LEAST) -> list[list[StateArray]]:
    """Divides the training state among the ranks that write a checkpoint: returns the arrays, or
    slices of arrays, that each rank writes, in order, as descriptions without values.

    `owned` has the arrays of each rank. If several ranks have an element, exactly one of them
    writes it, and these ranks write about equally many bytes. An array is not cut if it has less
    than `least` bytes, or if its copies on several ranks may differ, as those of buffers do; if
    both are true, or if it is empty, the first of these ranks writes it.
    """
    shared = defaultdict[tuple[int, ...], list[tuple[int, StateArray]]](list)
    of_ranks: list[list[tuple[int, StateArray]]] = [[] for _ in owned]
    for number, (x, ranks) in enumerate(_shared_slices(owned)):
        is_first = not x.size or (x.may_differ and x.nbytes < least)
        (of_ranks[ranks[0]] if is_first else shared[ranks]).append((number, x))
    for ranks, slices in shared.items():
        total, at = sum(x.nbytes for _, x in slices), 0
        ends = [total * k // len(ranks) for k in range(1, len(ranks))]
        for number, x in slices:
            cuts = [0, *(_cut(end - at, x, least) for end in ends), x.size]
            for rank, (a, b) in zip(ranks, pairwise(cuts), strict=True):
                if a < b:
                    of_ranks[rank].append((number, x._replace(lo=x.lo + a, hi=x.lo + b)))
            at += x.nbytes
    return [[x for _, x in sorted(of_rank, key=itemgetter(0))] for of_rank in of_ranks]


def _cut(byte: int, x: StateArray, least: int) -> int:
    """Returns the number of elements of x before a cut at its byte `byte`, where the files of two
    ranks meet: 0 or all if x is smaller than `least` bytes, or if its copies may differ."""
    if x.nbytes < least or x.may_differ:
        return x.size if 2 * byte > x.nbytes else 0
    return min(max(byte * x.size // x.nbytes, 0), x.size)


def _shared_slices(
    owned: Sequence[Sequence[StateArray]],
) -> Iterator[tuple[StateArray, tuple[int, ...]]]:
    """Yields (slice of an array, the ranks that hold all of it), cut wherever a range of a rank
    begins or ends."""
    of_parts = defaultdict[tuple[str, Box], list[tuple[int, StateArray]]](list)
    for rank, arrays in enumerate(owned):
        for x in arrays:
            of_parts[x.name, x.place.part].append((rank, x))
    for holders in of_parts.values():
        ends = sorted({end for _, x in holders for end in (x.lo, x.hi)})
        for lo, hi in [*pairwise(ends)] or [(ends[0], ends[0])]:
            owners = [(rank, x) for rank, x in holders if x.lo <= lo and hi <= x.hi]
            if owners:
                ranks = tuple(dict.fromkeys(rank for rank, _ in owners))
                yield owners[0][1]._replace(lo=lo, hi=hi), ranks


# ---- the file


class RankFile(NamedTuple):
    """The layout of one rank's file of a checkpoint.

    header   the bytes before the arrays
    starts   the byte at which each array begins
    sha256   the digest of each block of 1 MB, empty until the file is written
    """

    name: str
    size: int
    header: bytes
    arrays: tuple[StateArray, ...]
    starts: list[int]
    sha256: tuple[str, ...] = ()

    def arrays_in(self, start: int, stop: int) -> str:
        """Returns the names of the first and last array with bytes from start to stop - 1, for a
        message."""
        both = zip(self.arrays, self.starts, strict=True)
        names = [x.name for x, at in both if at < stop and start < at + x.nbytes] or ["the header"]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"


class FileWritten(NamedTuple):
    """The size and block digests of a rank's written file, or the problem that prevented it."""

    problem: str
    size: int = 0
    blocks: Sequence[str] = ()


def name_of(rank: int) -> str:
    """Returns the name of a rank's file in a checkpoint, such as rank-00000.safetensors."""
    return f"rank-{rank:05d}.safetensors"


def laid_out(rank: int, arrays: Sequence[StateArray]) -> RankFile:
    """Returns the layout of a rank's file: header, order and offsets."""
    index = [HeaderRow(_name(x), named(x.dtype), (x.size,)) for x in arrays]
    header, starts = header_of(Path(name_of(rank)), index, {"format": "nnmpi.checkpoint"})
    ends = (start + x.nbytes for x, start in zip(arrays, starts, strict=True))
    size = max(ends, default=len(header))
    return RankFile(name_of(rank), size, header, (*arrays,), starts)


def _name(x: StateArray) -> str:
    """Returns an array's name in the header, with its range if it is a part."""
    return x.name if x.is_whole else f"{x.name}{[*map(list, x.place.part)]}[{x.lo}:{x.hi}]"


def about_arrays(arrays: Sequence[np.ndarray]) -> list[StateArray]:
    """Returns the arrays among the RunFacts as arrays of the checkpoint, `about 0`, `about 1`,
    ..."""
    return [
        StateArray(
            Place.of_whole(f"{ABOUT} {i}", a.shape), (*range(a.ndim),), 0, a.size, a.dtype.name
        ).holding(a.reshape(-1))
        for i, a in enumerate(arrays)
    ]


def is_about(x: StateArray) -> bool:
    """True if an array is of the RunFacts, not of the state of training."""
    return x.name.startswith(f"{ABOUT} ")


def content_of(file: RankFile, owned: Iterable[StateArray]) -> memoryview:
    """Returns the bytes of a rank's file, copied from `owned`, the arrays that the rank has."""
    content = np.empty(file.size, np.uint8)
    content[: len(file.header)] = np.frombuffer(file.header, np.uint8)
    by_place = defaultdict[Place, list[StateArray]](list)
    for x in owned:
        by_place[x.place].append(x)
    for x, at in zip(file.arrays, file.starts, strict=True):
        held = next(y for y in by_place[x.place] if y.lo <= x.lo and x.hi <= y.hi)
        assert held.read is not None
        row = held.read(x.lo, x.hi)
        target = content[at : at + row.nbytes].view(row.dtype.newbyteorder("<"))
        target[...] = row
    return content.data


def prepared(
    folder: Path,
    rank: int,
    arrays: Sequence[StateArray],
    owned: Sequence[StateArray],
    stop: threading.Event,
) -> Callable[[], FileWritten]:
    """Copies the arrays that a rank writes, since later steps change them, and returns a function
    that writes the copies, or ends with CancelledError once `stop` is set. `owned` contain the
    slices `arrays`."""
    try:
        file = laid_out(rank, arrays)
        content = content_of(file, owned)
    except MemoryError as error:
        return partial(FileWritten, reason_of(error))

    def write() -> FileWritten:
        try:
            blocks = write_file(folder / file.name, content, stop)
            sync(folder)
        except (OSError, MemoryError) as error:
            return FileWritten(reason_of(error))
        return FileWritten("", file.size, blocks)

    return write


def write_file(path: Path, content: memoryview, stop: threading.Event) -> list[str]:
    """Writes a new file and syncs it to disk; returns the digest of each block of 1 MB. Two threads
    write and hash a half each, since one is slower than a disk. Raises CancelledError once `stop`
    is set."""
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
    """Writes the blocks of these numbers; returns their digests, or raises CancelledError."""
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
    """Returns the host name and the reason of a system error, for a message."""
    if isinstance(error, OSError):
        return f"{platform.node()}: {error.strerror or error}"
    return f"{platform.node()}: out of memory"

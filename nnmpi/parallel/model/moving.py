"""Carries out a MovePlan, by messages between ranks and by reading files.

    rank 0   read ─► pack ═╗            ╔═► unpack ─► write      messages of a few MB, one under way
    rank 1   read ─► pack ═╩════════════╩═► unpack ─► write      at a time from each rank to each
    file     read ──────────────────────────────────► write

Tensors are moved a few at a time. So a rank needs, in addition to the memory of its training state,
room for TOGETHER bytes, or for its part of one tensor that is larger.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import chain, islice
from typing import TypeAlias

import numpy as np

from nnmpi.comm import Comm
from nnmpi.comm.progress import Work
from nnmpi.nn.place import Range
from nnmpi.parallel.model.moves import (
    Holder,
    MovePiece,
    MovePlan,
    Runs,
    TensorMove,
    longest_message,
)

Read: TypeAlias = Callable[[Holder, Range, int, int], np.ndarray]
"""read(holder, have, lo, hi): returns elements lo..hi of the box of `have`, a range that the holder
has. Calls for a holder are in increasing order, so a file is read once from start to end."""

Arrival: TypeAlias = tuple[Range, np.ndarray]
"""(need, values): a range that this rank needs, and the values of all its elements."""

SHORT_RUN = 64  # elements: runs shorter than this on average are copied by one fancy index


def arrivals(plan: MovePlan, comm: Comm, read: Read) -> Generator[Arrival, None, None]:
    """Yields (range, values) for each range that this rank needs, in the order of the plan, while
    all ranks send and receive.

    read   (holder, range that it has, lo, hi): returns elements lo..hi-1 of the range's box (a
           part of a tensor); the holder is this rank, which reads its memory, or a file

    Every rank iterates to the end, with the same plan. An error in `read`, or one thrown into the
    generator, is raised after all messages, on this rank only.
    """
    error: Exception | None = None
    for group in plan.together():
        moving = _Exchange(group, comm, read)
        moving.exchange()  # also after an error: other ranks wait for these messages
        try:
            if (error := error or moving.error) is None:
                moving.copy()
                yield from moving.arrived()
        except Exception as caught:
            error = caught
    if error is not None:
        raise error


Peers = dict[int, list[TensorMove]]


class _Exchange:
    """The moves of one group of tensors on one rank: local copies, sends and receives. If reading
    for another rank has failed (`error`), that rank still gets a message."""

    error: Exception | None = None

    def __init__(self, plan: MovePlan, comm: Comm, read: Read) -> None:
        self._plan, self._comm, self._read = plan, comm, read
        self._max_bytes, me = longest_message(comm.size), comm.rank
        self._local, self._sent, self._received = list[TensorMove](), Peers(), Peers()
        for (holder, to), moves in plan.between().items():
            if isinstance(holder, str) or holder == to:
                self._local += moves * (to == me)
            elif to == me:
                self._received[holder] = moves
            elif holder == me:
                self._sent[to] = moves
        self._arrived = {
            need: np.empty(need.size, plan.tensors[need.tensor].dtype)
            for rank, need in plan.needs
            if rank == me
        }

    def exchange(self) -> None:
        """Sends what other ranks need of this one, and receives what it needs."""
        streams = [self._receives(*peer) for peer in self._received.items()]
        streams += [self._sends(*peer) for peer in self._sent.items()]
        under_way = [(work, stream) for stream in streams for work in islice(stream, 1)]
        while under_way:
            under_way[0][0].poll()  # one poll lets MPI move all messages
            ended = [stream for work, stream in under_way if work.done]
            under_way = [(work, stream) for work, stream in under_way if not work.done]
            under_way += [(work, stream) for stream in ended for work in islice(stream, 1)]
            if not ended:
                time.sleep(0)  # where ranks share a core, the sender needs it now

    def _receives(self, source: int, moves: Sequence[TensorMove]) -> Iterator[Work]:
        for message in self._plan.messages(moves, self._max_bytes):
            packed = np.empty(sum(piece.nbytes for piece in message), np.uint8)
            yield self._comm.irecv(packed, source)
            for piece, values in _unpacked(message, packed):
                runs = self._runs(piece)
                target = runs.target - piece.move.need.lo
                _copy(values, _packed(runs.length), self._array(piece), target, runs.length)

    def _sends(self, to: int, moves: Sequence[TensorMove]) -> Iterator[Work]:
        for message in self._plan.messages(moves, self._max_bytes):
            packed = np.empty(sum(piece.nbytes for piece in message), np.uint8)
            for piece, values in _unpacked(message, packed):
                runs = self._runs(piece)
                try:
                    row, source = self._had(piece, runs)
                    _copy(row, source, values, _packed(runs.length), runs.length)
                except Exception as error:
                    self.error = error
            yield self._comm.isend(packed, to)

    def copy(self) -> None:
        """Copies the elements that this rank needs from its own memory and from files."""
        for piece in chain.from_iterable(self._plan.messages(self._local, self._max_bytes)):
            runs = self._runs(piece)
            row, source = self._had(piece, runs)
            target = runs.target - piece.move.need.lo
            _copy(row, source, self._array(piece), target, runs.length)

    def arrived(self) -> Iterator[Arrival]:
        """Yields (range, values) of each needed range, and drops its reference to the values."""
        while self._arrived:  # popped first, so that the caller's array is freed when it is done
            need = next(iter(self._arrived))
            yield need, self._arrived.pop(need)

    def _had(self, piece: MovePiece, runs: Runs) -> tuple[np.ndarray, np.ndarray]:
        """Returns the elements of a message's piece, and the index at which each run starts."""
        first, stop = int(runs.source[0]), int(runs.source[-1] + runs.length[-1])
        move = piece.move
        return self._read(move.holder, move.have, first, stop), runs.source - first

    def _array(self, piece: MovePiece) -> np.ndarray:
        return self._arrived[piece.move.need]

    def _runs(self, piece: MovePiece) -> Runs:
        """Returns the runs of adjacent elements of which a piece of a message consists."""
        axes = self._plan.tensors[piece.move.need.tensor].axes
        return piece.move.runs(axes).cut(piece.lo, piece.hi)


def _unpacked(
    message: list[MovePiece], packed: np.ndarray
) -> Iterator[tuple[MovePiece, np.ndarray]]:
    """Yields (piece, view of its values) for each piece of a message, whose bytes are `packed`."""
    offset = 0
    for piece in message:
        yield piece, packed[offset : offset + piece.nbytes].view(piece.dtype)
        offset += piece.nbytes


def _packed(length: np.ndarray) -> np.ndarray:
    """Returns the indices at which runs of these lengths start if they are stored without gaps."""
    starts: np.ndarray = np.cumsum(length) - length
    return starts


def _copy(
    row: np.ndarray, source: np.ndarray, into: np.ndarray, target: np.ndarray, length: np.ndarray
) -> None:
    """Copies runs: run k from source[k] of `row` to target[k] of `into`."""
    # one slice assignment per run is slow where runs are short, as rows of a cut matrix may be
    if length.sum() < SHORT_RUN * len(length):
        into[_indices(target, length)] = row[_indices(source, length)]
    else:
        for a, b, n in zip(source.tolist(), target.tolist(), length.tolist(), strict=True):
            into[b : b + n] = row[a : a + n]


def _indices(start: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Returns the indices of all elements of runs, given starts and lengths."""
    indices: np.ndarray = np.repeat(start - _packed(length), length) + np.arange(length.sum())
    return indices

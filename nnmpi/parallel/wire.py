"""Wires: objects that carry out the collectives and messages of a communicator on arrays of any
backend, in host or device memory.

On the host, the wire of a Comm is the Comm itself. Arrays of a device go through pinned host memory
in pieces, so that copies and messages of several pieces overlap:

    device     piece 0  piece 1  piece 2                              0        1        2
    copies         └─fetch─┐└─fetch─┐└─fetch─┐                      ┌─put─┘┌─put─┘┌─put─┘
    Comm                   └── ring ─┘── ring ─┘── ring ────────────┘

Each piece is one non-blocking operation of the Comm, which begins when its copy has arrived in host
memory (`Staging`): a poll of one progresses all. Only calls that return a result wait for the
device.
"""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol, TypeAlias

from nnmpi.arrays import backend
from nnmpi.arrays.backend import Array, Backend
from nnmpi.arrays.devices import CopyStream
from nnmpi.collectives.step import bounds
from nnmpi.comm import Comm, NoRoomError, Parts, Work
from nnmpi.parallel.staging import ALL, NOTHING, Staging, StagingMemory

PIECE_BYTES = 1 << 22
"""The bytes of a piece: copying that much takes much longer than starting the copy."""

MOST_BUFFERS = 1024
"""The largest number of staging buffers that are kept for later use."""


class Transfer(Protocol):
    """The interface of a non-blocking operation in progress, such as an all-reduce: a Work, as
    methods of a Comm return it, or several Works together."""

    @property
    def done(self) -> bool:
        """True if the operation is complete."""

    def poll(self) -> bool:
        """Progresses all operations of this rank; returns True if this one is complete."""

    def wait(self) -> None:
        """Returns when the operation is complete, or on a device when kernels launched later run
        after it."""


WIRE = "wire"
"""The attribute of a Comm that holds its wire to a device."""


def wire_of(comm: Comm, on: Backend, make: "type[StagedComm] | None" = None) -> "Wire":
    """Returns the wire of a Comm for a backend: on the host the Comm itself. For a device the first
    call makes an object of the class `make`, by default StagedComm; later calls return it again."""
    if on.is_host:
        return comm
    if WIRE not in comm.attributes:
        comm.attributes[WIRE] = (make or StagedComm)(comm, on)
    wire: Wire = comm.attributes[WIRE]
    return wire


wire_around: ContextVar[Callable[[Comm, Array], Any] | None] = ContextVar(
    "wire_around", default=None
)
"""Replaces the result of `wire_for` while a pass is recorded; None: `wire_for` returns wires."""


def wire_for(comm: Comm, array: Array) -> "Wire":
    """Returns what carries out a Comm's operations on arrays like this."""
    if (around := wire_around.get()) is not None:
        wire: Wire = around(comm, array)
        return wire
    return wire_of(comm, backend.of(array))


def all_reduce_with_room(wire: "Wire", row: Array, algorithm: str) -> None:
    """Sums a 1-D array in place by `algorithm`, or by `ring` if shared memory is lacking."""
    try:
        wire.all_reduce(row, algorithm)
    except NoRoomError:
        wire.all_reduce(row, "ring")


class Transfers(tuple[Transfer, ...]):
    """Several non-blocking operations as one, such as those of the pieces of an array."""

    @property
    def done(self) -> bool:
        return all(work.done for work in self)

    def poll(self) -> bool:
        return all(work.poll() for work in self)

    def wait(self) -> None:
        for work in self:
            work.wait()


Start: TypeAlias = Callable[[Staging, slice], Work]
"""A function that starts the collective or message for elements `span` of an array."""


class Piece(NamedTuple):
    """A piece of an array in device memory, for which a collective or message is in progress:
    `staging` has its copy in host memory, and `work` is the operation on this copy."""

    staging: Staging
    work: Work


class StagedComm:
    """Carries out the collectives and messages of a Comm, by methods with its names, on arrays in
    device memory. Host buffers of non-blocking collectives are kept, by address of the array.

    in_order   whether all_reduce and all_gather run in the device's stream, in order with its
               kernels, so that the host never waits for them
    library    the communicator of a library, which has to outlive graphs with its calls; or None
    """

    in_order = False
    library: Any = None

    def __init__(self, comm: Comm, on: Backend) -> None:
        self.rank, self.size, self.name = comm.rank, comm.size, comm.name
        self._comm, self._xp, self._copies = comm, on.xp, CopyStream(on)
        self._memory: dict[tuple[int, int], StagingMemory] = {}
        self._last: Staging | None = None

    def chunk(self, n: int) -> slice:
        return self._comm.chunk(n)

    # ---- calls that return with the result

    def all_reduce(self, array: Array, algorithm: str = "auto") -> None:
        if algorithm == "shared":
            raise NoRoomError("devices have no memory that ranks of a node share")
        self._in_place(array, lambda row: self._wait(self._summed(row, algorithm, is_kept=False)))

    def all_gather(self, array: Array, algorithm: str = "ring", parts: Parts = None) -> None:
        self._in_place(
            array, lambda row: self._wait(self._gathered(row, algorithm, parts, is_kept=False))
        )

    def broadcast(self, array: Array, root: int = 0) -> None:
        self._in_place(array, lambda row: self._wait(self._broadcast(row, root, is_kept=False)))

    # ---- operations that are started

    def start(self, array: Array, algorithm: str = "auto") -> Transfer:
        return _one(self._summed(one_row(array, "start"), algorithm))

    def start_reduce_scatter(
        self, array: Array, algorithm: str = "ring", parts: Parts = None
    ) -> Transfer:
        row = one_row(array, "start_reduce_scatter")
        ends = self._ends(parts, row.size)
        part_here = slice(ends[self.rank], ends[self.rank + 1])

        def start(staging: Staging, span: slice) -> Work:
            within = _parts_within(ends, span)
            return self._comm.start_reduce_scatter(staging.host, algorithm, within, staging)

        return _one(self._started(row, start, goes=lambda span: _within(part_here, span)))

    def start_all_gather(
        self, array: Array, algorithm: str = "ring", parts: Parts = None
    ) -> Transfer:
        return _one(self._gathered(one_row(array, "start_all_gather"), algorithm, parts))

    def start_broadcast(self, array: Array, root: int = 0) -> Transfer:
        return _one(self._broadcast(one_row(array, "start_broadcast"), root))

    def isend(self, array: Array, to: int, tag: int = 0) -> Transfer:
        row = self._xp.ascontiguousarray(array).reshape(-1)
        pieces = self._started(
            row,
            lambda staging, span: self._comm.isend(staging.host, to, tag, staging),
            goes=lambda span: NOTHING,
            is_kept=False,
        )
        return _one(pieces)

    def irecv(self, array: Array, source: int, tag: int = 0) -> Transfer:
        pieces = self._started(
            one_row(array, "irecv"),
            lambda staging, span: self._comm.irecv(staging.host, source, tag, staging),
            comes=lambda span: NOTHING,
            is_kept=False,
        )
        return _one(pieces)

    # ---- pieces

    def _summed(self, row: Array, algorithm: str, is_kept: bool = True) -> list[Piece]:
        def start(staging: Staging, span: slice) -> Work:
            return self._comm.start(staging.host, algorithm, staging)

        return self._started(row, start, is_kept=is_kept)

    def _gathered(
        self, row: Array, algorithm: str, parts: Parts, is_kept: bool = True
    ) -> list[Piece]:
        ends = self._ends(parts, row.size)
        part_here = slice(ends[self.rank], ends[self.rank + 1])

        def start(staging: Staging, span: slice) -> Work:
            within = _parts_within(ends, span)
            return self._comm.start_all_gather(staging.host, algorithm, within, staging)

        return self._started(
            row, start, comes=lambda span: _within(part_here, span), is_kept=is_kept
        )

    def _broadcast(self, row: Array, root: int, is_kept: bool = True) -> list[Piece]:
        comes, goes = (ALL, NOTHING) if self.rank == root else (NOTHING, ALL)

        def start(staging: Staging, span: slice) -> Work:
            return self._comm.start_broadcast(staging.host, root, copies=staging)

        return self._started(row, start, lambda span: comes, lambda span: goes, is_kept)

    def _started(
        self,
        row: Array,
        start: Start,
        comes: Callable[[slice], slice] = lambda span: ALL,
        goes: Callable[[slice], slice] = lambda span: ALL,
        is_kept: bool = True,
    ) -> list[Piece]:
        """Starts a non-blocking operation by start(staging, span) for each piece of a 1-D array,
        the slice `span`; returns the pieces. comes(span) is the slice of a piece that is copied to
        the host before it, goes(span) the one copied back after it. With `is_kept`, later calls for
        the same array use the same host buffer."""
        pieces = list[Piece]()
        for span in _spans(row):
            staging = self._staged(row[span], comes(span), goes(span), is_kept)
            pieces.append(Piece(staging, start(staging, span)))
            self._last = staging  # not before the start: works behind one that failed would hang
        return pieces

    def _staged(self, piece: Array, comes: slice, goes: slice, is_kept: bool) -> Staging:
        key = piece.data.ptr if is_kept else 0, piece.nbytes
        if key not in self._memory:
            if len(self._memory) == MOST_BUFFERS:
                self._copies.event().synchronize()  # pending copies may use these buffers
                self._memory.clear()
            self._memory[key] = StagingMemory(self._copies, piece.nbytes)
        return Staging(self._copies, piece, self._memory[key], self._last, comes, goes)

    def _wait(self, pieces: list[Piece]) -> None:
        pieces[0].staging.wait()  # blocks, rather than polls
        _one(pieces).wait()

    def _in_place(self, array: Array, carry_out: Callable[[Array], object]) -> None:
        """Calls `carry_out` with a contiguous 1-D view of the array, which it changes. For an array
        that is not contiguous it gets a copy, which is copied back afterwards."""
        row = self._xp.ascontiguousarray(array).reshape(-1)
        carry_out(row)
        if not array.flags.c_contiguous:
            array[...] = row.reshape(array.shape)

    def _ends(self, parts: Parts, n: int) -> Sequence[int]:
        """Returns where each rank's part of n elements begins, and n; None: nearly equal parts."""
        return bounds(n, self.size) if parts is None else [*accumulate(parts, initial=0)]


Wire: TypeAlias = Comm | StagedComm
"""The collectives and messages of a Comm, for arrays of one backend."""


def is_in_order(wire: Wire) -> bool:
    """Returns True if the sums and gathers of `wire` run in order with the kernels of a device (in
    its stream), so that the host never has to wait for them."""
    return isinstance(wire, StagedComm) and wire.in_order


def _one(pieces: list[Piece]) -> Transfer:
    works = [work for _, work in pieces]
    return works[0] if len(works) == 1 else Transfers(works)


def one_row(array: Array, call: str) -> Array:
    """Returns a 1-D view of a contiguous array, else raises ValueError that names `call`."""
    if not array.flags.c_contiguous:
        raise ValueError(f"{call} takes a device's array in C order only: use ascontiguousarray")
    return array.reshape(-1)


def _spans(row: Array) -> Iterator[slice]:
    """Yields the slices in which a 1-D array is sent, at least one: others wait for it."""
    numbers = PIECE_BYTES // row.itemsize
    for lo in range(0, max(row.size, 1), numbers):
        yield slice(lo, min(lo + numbers, row.size))


def _within(part: slice, span: slice) -> slice:
    """Returns the intersection of two slices, counted from the start of `span`; perhaps empty."""
    lo, hi = max(part.start, span.start), min(part.stop, span.stop)
    return slice(lo - span.start, max(lo, hi) - span.start)


def _parts_within(ends: Sequence[int], span: slice) -> list[int]:
    """Returns how much of each rank's part lies within `span`; part r begins at ends[r]."""
    parts = (_within(slice(*part), span) for part in pairwise(ends))
    return [part.stop - part.start for part in parts]

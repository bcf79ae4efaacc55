"""Carries a plan out: turns an algorithm into the moves of one rank, and makes them.

r  this rank      p  ranks      n  elements of the buffer      m  a move
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, Step, cut
from nnmpi.comm.base import Request, Transport

Array: TypeAlias = NDArray[Any]
Steps: TypeAlias = Iterator[list[Request] | None]  # what has to be complete before the next step

LATER = None  # in place of a list of requests: something else on this rank has to be done first


class Part(NamedTuple):
    """Some elements of the buffer: as they are numbered, and where their bytes are."""

    elements: slice
    bytes: slice

    @property
    def empty(self) -> bool:
        return bool(self.elements.start == self.elements.stop)


class Move(NamedTuple):
    """What one rank does in one round.

    `send` and `recv` hold one part, or none, or several if it is too long for one message.
    """

    to: int
    send: tuple[Part, ...]
    source: int
    recv: tuple[Part, ...]
    reduce: bool
    settle: tuple[slice, ...]  # sums that are complete, to be rounded before they are sent


class Plan(NamedTuple):
    """All moves of one rank, for buffers of one length and type.

    Sums are kept in `wide`, which is a finer type than that of the buffer for float16 and bfloat16.
    Partial sums travel in it. A sum that is complete is rounded once, by the rank that sends it on,
    and travels rounded.
    """

    moves: tuple[Move, ...]
    dtype: np.dtype[Any]
    wide: np.dtype[Any]
    scratch: int  # elements that have to be held apart from the buffer until they are added
    settle: tuple[slice, ...]  # what is left to be rounded at the end


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type in which numbers of this one are summed: 16 bits are too few to add up in."""
    short = dtype.itemsize == 2 and dtype.kind in "fV"
    return np.dtype(np.float32) if short else dtype


def plan(
    algorithm: Algorithm, r: int, p: int, n: int, dtype: np.dtype[Any], piece: int = 1 << 30
) -> Plan:
    """What rank r does; no message is longer than `piece` bytes."""
    chunks, sums = algorithm.chunks(p), wide(dtype)
    settled = np.zeros(chunks, bool)
    moves = []
    for step in algorithm.steps(r, p):
        s = Step(int(step.to), step.send, int(step.source), step.recv, step.reduce)
        itemsize = sums.itemsize if s.reduce else dtype.itemsize
        send = _parts(s.send, n, chunks, itemsize, piece) if s.to >= 0 else ()
        recv = _parts(s.recv, n, chunks, itemsize, piece) if s.source >= 0 else ()
        settle = () if s.reduce or not send else _settle(settled, s.send, n)
        if recv and not s.reduce:
            settled[int(s.recv[0]) : int(s.recv[1])] = True
        if send or recv:
            moves.append(Move(s.to, send, s.source, recv, s.reduce, settle))
    scratch = max((_elements(m.recv) for m in moves if m.reduce), default=0)
    return Plan(tuple(moves), dtype, sums, scratch, _settle(settled, (0, chunks), n))


def _parts(
    range_: tuple[Any, Any], n: int, chunks: int, itemsize: int, piece: int
) -> tuple[Part, ...]:
    """The elements of a range of chunks, in messages that are not too long."""
    lo, hi = (cut(n, chunks, int(i)) for i in range_)
    most = max(piece // itemsize, 1)
    return tuple(
        Part(slice(i, j), slice(i * itemsize, j * itemsize))
        for i, j in ((i, min(i + most, hi)) for i in range(lo, hi, most))
    )


def _elements(parts: Sequence[Part]) -> int:
    return sum(part.elements.stop - part.elements.start for part in parts)


def _settle(settled: NDArray[np.bool_], range_: tuple[Any, Any], n: int) -> tuple[slice, ...]:
    """The elements of chunks in a range that are not settled yet, which they are from now on."""
    chunks = len(settled)
    due = [c for c in range(int(range_[0]), int(range_[1])) if not settled[c]]
    settled[due] = True
    return tuple(slice(cut(n, chunks, c), cut(n, chunks, c + 1)) for c in due)


def carry_out(
    plan: Plan, array: Array, sums: Array, scratch: Array, transport: Transport, tag: int
) -> Steps:
    """Makes the moves, and yields what has to be complete before the next one can be made.

    `array`, `sums` and `scratch` are flat; `sums` is `array` itself unless the plan sums in a finer
    type. In a round both messages leave at once. What arrives is added after both are through,
    since a rank may be sending what it adds to.
    """
    apart = plan.wide != plan.dtype
    raw, raw_sums, raw_scratch = array.view(np.uint8), sums.view(np.uint8), scratch.view(np.uint8)
    for m in plan.moves:
        if apart:
            _round(m.settle, sums, array)
        if m.reduce:
            held, start = raw_sums, m.recv[0].bytes.start if m.recv else 0
            into = [raw_scratch[q.bytes.start - start : q.bytes.stop - start] for q in m.recv]
        else:
            held = raw
            into = [raw[q.bytes] for q in m.recv]
        requests = [transport.irecv(data, m.source, tag) for data in into]
        requests += [transport.isend(held[q.bytes], m.to, tag) for q in m.send]
        yield requests
        if m.reduce and m.recv:
            there = sums[m.recv[0].elements.start : m.recv[-1].elements.stop]
            np.add(there, scratch[: there.size], out=there)
    if apart:
        _round(plan.settle, sums, array)


def _round(settle: tuple[slice, ...], sums: Array, array: Array) -> None:
    for due in settle:
        array[due] = sums[due]


class Runner:
    """Carries algorithms out on one transport; keeps plans and scratch memory for next time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._plans: dict[tuple[Algorithm, int, np.dtype[Any]], Plan] = {}
        self._free: list[NDArray[np.uint8]] = []

    def steps(
        self, algorithm: Algorithm, flat: Array, tag: int, sums: Array | None = None
    ) -> Steps:
        """The moves of this rank for a flat buffer; `sums` is memory for finer sums, if there is."""
        key = (algorithm, flat.size, flat.dtype)
        moves = self._plans.get(key) or self._plans.setdefault(key, self._plan(*key))
        memory = self._take(moves.scratch * moves.wide.itemsize)
        scratch = memory[: moves.scratch * moves.wide.itemsize].view(moves.wide)
        if sums is None:
            sums = flat if moves.wide == moves.dtype else flat.astype(moves.wide)
        yield from carry_out(moves, flat, sums, scratch, self._transport, tag)
        self._free.append(memory)

    def _plan(self, algorithm: Algorithm, n: int, dtype: np.dtype[Any]) -> Plan:
        t = self._transport
        return plan(algorithm, t.rank, t.size, n, dtype, t.piece)

    def _take(self, nbytes: int) -> NDArray[np.uint8]:
        """Scratch memory of at least so many bytes: a new one costs a page fault every 4 KiB."""
        for i, memory in enumerate(self._free):
            if memory.size >= nbytes:
                return self._free.pop(i)
        if self._free:
            self._free.pop()  # too small: make room for a larger one
        return np.empty(max(nbytes, 1), np.uint8)

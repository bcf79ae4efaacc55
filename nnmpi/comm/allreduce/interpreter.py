"""Carries a plan out: turns an algorithm into the moves of one rank, and makes them.

r  this rank      p  ranks      n  elements of the buffer      s  a step of the algorithm
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, Range, Step, cut
from nnmpi.comm.transport.base import Request, Transport

Array: TypeAlias = NDArray[Any]
Steps: TypeAlias = Iterator[list[Request] | None]  # what has to be complete before the next step

MOST_PLANS = 1000  # that are kept
LATER = None  # in place of a list of requests: something else on this rank has to be done first


class Move(NamedTuple):
    """What one rank does in one round; each way it is one message, or none, or several long ones.

    Messages are named by the bytes they fill, and what is added by its elements.
    """

    to: int
    out: tuple[slice, ...]  # bytes of the sums if they are partial, else of the buffer
    source: int
    into: tuple[slice, ...]  # bytes of scratch memory if they are to be added, else of the buffer
    reduce: bool
    add: tuple[slice, slice] | None  # elements of the sums, and of the scratch memory
    settle: tuple[slice, ...]  # sums that are complete, to be rounded before they are sent
    short: bool  # at most one message each way


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


def make_plan(
    algorithm: Algorithm, r: int, p: int, n: int, dtype: np.dtype[Any], piece: int = 1 << 30
) -> Plan:
    """What rank r does; no message is longer than `piece` bytes."""
    chunks, sums = algorithm.chunks(p), wide(dtype)
    settled = np.zeros(chunks, bool)
    moves = []
    for s in algorithm.steps(r, p):
        itemsize = sums.itemsize if s.reduce else dtype.itemsize
        lo, hi = _elements(s.send, n, chunks) if s.to >= 0 else (0, 0)
        out = _messages(lo, hi, itemsize, piece)
        settle = () if s.reduce or not out else _settle(settled, s.send, n)
        lo, hi = _elements(s.recv, n, chunks) if s.source >= 0 else (0, 0)
        add = (slice(lo, hi), slice(0, hi - lo)) if s.reduce and lo < hi else None
        into = _messages(*((0, hi - lo) if s.reduce else (lo, hi)), itemsize, piece)
        if s.reduce and sums is not dtype:
            _refuse_settled(settled, s)
        if into and not s.reduce:
            settled[int(s.recv[0]) : int(s.recv[1])] = True
        if out or into:
            short = len(out) <= 1 and len(into) <= 1
            moves.append(Move(int(s.to), out, int(s.source), into, s.reduce, add, settle, short))
    scratch = max((m.add[1].stop for m in moves if m.add is not None), default=0)
    return Plan(tuple(moves), dtype, sums, scratch, _settle(settled, (0, chunks), n))


def _refuse_settled(settled: NDArray[np.bool_], s: Step) -> None:
    """A sum that was rounded is complete: this plan would go on with it."""
    for peer, (lo, hi) in ((s.to, s.send), (s.source, s.recv)):
        if peer >= 0 and settled[int(lo) : int(hi)].any():
            raise ValueError(
                f"the plan adds to chunks {lo} to {hi - 1} after it has put sums there; "
                "numbers of 16 bits are rounded by then: use float32"
            )


def _elements(chunks: Range, n: int, of: int) -> tuple[int, int]:
    """Where a range of chunks begins and ends, if `of` chunks have n elements."""
    return cut(n, of, int(chunks[0])), cut(n, of, int(chunks[1]))


def _messages(lo: int, hi: int, itemsize: int, piece: int) -> tuple[slice, ...]:
    """The bytes of elements lo to hi - 1, in messages that are not too long."""
    step = piece // itemsize * itemsize
    lo, hi = lo * itemsize, hi * itemsize
    return tuple(slice(i, min(i + step, hi)) for i in range(lo, hi, step))


def _settle(settled: NDArray[np.bool_], range_: tuple[Any, Any], n: int) -> tuple[slice, ...]:
    """The elements of chunks in a range that are not settled yet, which they are from now on."""
    chunks = len(settled)
    due = [c for c in range(int(range_[0]), int(range_[1])) if not settled[c]]
    settled[due] = True
    return tuple(slice(cut(n, chunks, c), cut(n, chunks, c + 1)) for c in due)


def carry_out(
    plan: Plan,
    array: Array,
    sums: Array,
    scratch: Array,
    transport: Transport,
    tag: int,
    blocks: bool,
) -> Steps:
    """Makes the moves, and yields what has to be complete before the next one can be made.

    `array`, `sums` and `scratch` are flat; `sums` is `array` itself unless the plan sums in a finer
    type. In a round both messages leave at once. What arrives is added after both are through,
    since a rank may be sending what it adds to. `blocks` allows calls that return only when a
    message is through, which take less time than those that do not.
    """
    apart = plan.wide is not plan.dtype
    raw, raw_scratch = array.view(np.uint8), scratch.view(np.uint8)
    raw_sums = sums.view(np.uint8) if apart else raw
    for to, out, source, into, reduce, add, settle, short in plan.moves:
        if apart:
            _round(settle, sums, array)
        held, target = (raw_sums, raw_scratch) if reduce else (raw, raw)
        if blocks and short:
            transport.exchange(
                held[out[0]] if out else None, to, target[into[0]] if into else None, source, tag
            )
        else:
            requests = [transport.irecv(target[part], source, tag) for part in into]
            requests += [transport.isend(held[part], to, tag) for part in out]
            yield requests
        if add is not None:
            there = sums[add[0]]
            np.add(there, scratch[add[1]], there)
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
        self._free: dict[np.dtype[Any], list[Array]] = defaultdict(list)

    def steps(
        self,
        algorithm: Algorithm,
        flat: Array,
        tag: int,
        blocks: bool = False,
        sums: Array | None = None,
    ) -> Steps:
        """The moves of this rank for a flat buffer; `sums` is memory for finer sums, if any."""
        key = (algorithm, flat.size, flat.dtype)
        plan = self._plans.get(key)
        if plan is None:
            if len(self._plans) == MOST_PLANS:
                self._plans.clear()  # somebody makes new algorithms, or new lengths, without end
            plan = self._plans[key] = self._plan(*key)
        if sums is None:
            sums = flat if plan.wide is plan.dtype else flat.astype(plan.wide)
        free = self._free[plan.wide]
        scratch = free.pop() if free else _EMPTY
        if scratch.size < plan.scratch:  # the smaller one is not needed any more
            scratch = np.empty(plan.scratch, plan.wide)
        yield from carry_out(plan, flat, sums, scratch, self._transport, tag, blocks)
        free.append(scratch)

    def finish(self, algorithm: Algorithm, flat: Array) -> None:
        """All moves at once, where nothing else is under way on this transport."""
        for needs in self.steps(algorithm, flat, tag=0, blocks=True):
            self._transport.wait(needs or ())

    def free(self) -> None:
        """Gives back the transport; every rank of it calls it."""
        self._transport.free()

    def _plan(self, algorithm: Algorithm, n: int, dtype: np.dtype[Any]) -> Plan:
        t = self._transport
        return make_plan(algorithm, t.rank, t.size, n, dtype, t.piece)


_EMPTY: Array = np.empty(0)

"""The interpreter of collective algorithms: derives the messages of one rank and exchanges them.
Those of reduce-scatters, gathers and broadcasts are carried out here too, not only all-reduces.

r  this rank      p  ranks      n  elements of the buffer      s  a step of the algorithm
bounds  the element at which each chunk begins, and n at the end

Rules:

- Pending operations of a rank ("works") interleave at every `yield`. Memory that a work needs
  across a `yield` must not be shared: its scratch memory leaves the pool until it ends.
- The order of additions, and of operands, is the same in blocking and non-blocking calls: the bits
  of a sum depend on the algorithm and the number of ranks alone.
- A `Plan`, all messages and additions of one rank, is cached by algorithm, and an algorithm is
  equal to itself only: a caller that creates a new one for each call derives its plan each time
  (`rooted` is cached for that reason).
- `exchanges.algorithm_traffic` predicts how much a plan sends; tests compare it with the messages.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import NOBODY, Algorithm, Pieces, Step, in_rounds
from nnmpi.collectives.step import bounds as even_bounds
from nnmpi.comm.arguments import Array, accumulator
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import Transport

Bounds: TypeAlias = tuple[int, ...]

# (flat buffer, tag, blocks) -> steps. `blocks`: no other work of this rank is pending, so the steps
# may make blocking calls. It may differ between ranks.
AllReduce: TypeAlias = Callable[[Array, int, bool], Steps]

Slices: TypeAlias = tuple[slice, slice]

MOST_PLANS = 1000  # in the cache


ROW, SUMS, SCRATCH = range(3)
"""The numbers of the buffers of messages: the caller's buffer (ROW), sums in a wider type (SUMS),
and memory for received data that is added or moved later (SCRATCH)."""


class Message(NamedTuple):
    """A message to or from rank `peer`: a slice of bytes of the `buffer` ROW (the array to reduce),
    SUMS (partial sums in a wider type) or SCRATCH (memory for received data). If `packed` is given,
    these slices of the buffer are packed one after another, and `bytes` is a slice of the packed
    data."""

    peer: int
    buffer: int
    bytes: slice
    packed: tuple[slice, ...] = ()


class Move(NamedTuple):
    """One round on one rank: what it sends and receives, and how it adds or copies it."""

    out: tuple[Message, ...]
    into: tuple[Message, ...]
    add: tuple[Slices, ...]  # elements of the sums, and of the scratch memory
    put: tuple[Slices, ...]  # bytes of the buffer, and of the scratch memory
    round: tuple[slice, ...]  # complete sums to be rounded before they are sent


class Plan(NamedTuple):
    """All that one rank does in an algorithm on buffers of one length and type, by round.

    Sums are kept in `sums_dtype`, and partial sums travel in it. For float16 and bfloat16 it is
    float32: the rank that sends a complete sum rounds it first. With `narrow_sums` it is the type
    of the buffer: each addition is made in `adds_dtype`, float32, and rounded. In both cases the
    bits depend on the order of additions alone.
    """

    moves: tuple[Move, ...]
    dtype: np.dtype[Any]
    sums_dtype: np.dtype[Any]
    adds_dtype: np.dtype[Any]
    scratch: int  # elements of memory for received data that is added later
    round: tuple[slice, ...]  # sums to be rounded at the end
    one_way: bool  # sends are complete when received: a rank that only sends notices another call


def make_plan(
    algorithm: Algorithm,
    r: int,
    p: int,
    bounds: Bounds,
    dtype: np.dtype[Any],
    message_limit: int = 1 << 30,
    narrow_sums: bool = False,
) -> Plan:
    """Returns the Plan of rank r of p. `bounds` are the first elements of the buffer's chunks, and
    its length. No message is longer than `message_limit` bytes."""
    chunks, sums_dtype = algorithm.chunks(p), accumulator(dtype, narrow_sums)
    assert len(bounds) == chunks + 1
    rounded = np.zeros(chunks, bool)
    moves, scratch, width = [], 0, sums_dtype.itemsize
    for steps in in_rounds(algorithm.steps(r, p)):
        out, into, used = list[Message](), list[Message](), 0  # elements of the scratch memory
        add, put, due = list[Slices](), list[Slices](), list[slice]()
        for s in steps:
            # partial sums travel in the wide type, complete ones in the buffer's
            buffer, itemsize = (SUMS, width) if s.reduce else (ROW, dtype.itemsize)
            most = message_limit // itemsize * itemsize
            if s.reduce and sums_dtype is not dtype:
                _refuse_rounded(rounded, s)
            for message in s.sends(chunks):
                due += [] if s.reduce else _round(rounded, message, bounds)
                parts, start, size = _bytes(message, bounds, itemsize)
                at = (0, size, most) if len(parts) > 1 else (start, size, most)
                packed = parts if len(parts) > 1 else ()
                out += [Message(int(s.to), buffer, part, packed) for part in _cut(*at)]
            for message in s.receives(chunks):
                parts, start, size = _bytes(message, bounds, itemsize)
                target = ROW
                if s.is_aside(message):
                    target, start = SCRATCH, used * width
                    used += size // itemsize
                    into_place = _end_to_end(parts, start, itemsize if s.reduce else 1)
                    (add if s.reduce else put).extend(into_place)
                into += [Message(int(s.source), target, part) for part in _cut(start, size, most)]
                if not s.reduce:  # complete sums arrive rounded by their sender
                    for lo, hi in message:
                        rounded[lo:hi] = True
        scratch = max(scratch, used)
        if out or into:
            moves.append(Move(tuple(out), tuple(into), tuple(add), tuple(put), tuple(due)))
    at_end = tuple(_round(rounded, ((0, chunks),), bounds))
    types = dtype, sums_dtype, accumulator(dtype)
    return Plan(tuple(moves), *types, scratch, at_end, algorithm.one_way)


def _refuse_rounded(rounded: NDArray[np.bool_], s: Step) -> None:
    """Raises ValueError if step `s` sends or receives partial sums of a chunk whose complete sum
    was rounded to 16 bits, as `rounded` says."""
    for message in (*s.sends(len(rounded)), *s.receives(len(rounded))):
        for lo, hi in message:
            if rounded[lo:hi].any():
                raise ValueError(
                    f"the algorithm adds to chunks {lo} to {hi - 1} after their complete sums were "
                    "rounded to 16 bits: use float32, or 16-bit sums (--reduce-dtype, "
                    "narrow_sums=True)"
                )


def _bytes(message: Pieces, bounds: Bounds, itemsize: int) -> tuple[tuple[slice, ...], int, int]:
    """Returns the slices of bytes of a message (ranges of chunks), its first byte, and its number
    of bytes; `bounds` has the first element of each chunk."""
    parts = tuple(slice(bounds[lo] * itemsize, bounds[hi] * itemsize) for lo, hi in message)
    return parts, parts[0].start, sum(part.stop - part.start for part in parts)


def _packed(memory: Array, parts: tuple[slice, ...]) -> Array:
    return np.concatenate([memory[part] for part in parts])


def _end_to_end(parts: tuple[slice, ...], start: int, unit: int) -> Iterator[Slices]:
    """Yields, for each piece `parts` of a packed message that is not empty, its slice of the buffer
    and that of the packed data, which begin at byte `start`, in units of `unit` bytes."""
    for part in parts:
        end = start + part.stop - part.start
        if end > start:
            yield slice(part.start // unit, part.stop // unit), slice(start // unit, end // unit)
        start = end


def _cut(start: int, size: int, most: int) -> list[slice]:
    """Cuts the bytes from `start` to start + size - 1 into slices of at most `most` bytes."""
    return [slice(i, min(i + most, start + size)) for i in range(start, start + size, most)]


def _round(rounded: NDArray[np.bool_], message: Pieces, bounds: Bounds) -> list[slice]:
    """Returns the slices of sums to be rounded before a message is sent, and marks its chunks."""
    due = [c for piece in message for c in range(*piece) if not rounded[c]]
    rounded[due] = True
    return [slice(bounds[c], bounds[c + 1]) for c in due]


def _copy(parts: tuple[slice, ...], sums: Array, array: Array) -> None:
    for part in parts:
        array[part] = sums[part]


class Interpreter:
    """Runs collective algorithms over one transport: sends and receives the messages of this rank.

    It caches what each algorithm does on this rank, and keeps scratch memory for later calls.
    """

    def __init__(self, transport: Transport, narrow_sums: bool = False) -> None:
        self._transport, self.narrow_sums = transport, narrow_sums
        self._plans: dict[tuple[Algorithm, int | Bounds, np.dtype[Any]], Plan] = {}
        self._free: dict[np.dtype[Any], list[Array]] = defaultdict(list)

    def steps(
        self,
        algorithm: Algorithm,
        row: Array,
        tag: int,
        blocks: bool = False,
        sums: Array | None = None,
        bounds: Bounds | None = None,
    ) -> Steps:
        """Runs an algorithm on a flat buffer `row`, in place: a generator that yields requests, and
        is to be resumed when these are complete.

        `tag` is that of its messages. `blocks` allows blocking calls, which are faster. `sums` is
        memory for sums in a wider type. `bounds` are the first elements of the chunks, and the
        length; by default chunks are about equal. In each round all messages of a rank are posted
        at once. Received data is added when all of them are complete, since the rank may still be
        sending the elements to which it adds.
        """
        plan = self.plan(algorithm, row.size if bounds is None else bounds, row.dtype)
        return self.carry_out(plan, row, tag, blocks, sums)

    def carry_out(
        self, plan: Plan, row: Array, tag: int, blocks: bool = False, sums: Array | None = None
    ) -> Steps:
        """Runs a plan on a flat buffer in place; arguments and result are those of `steps`."""
        separate = plan.sums_dtype is not plan.dtype
        if sums is None:
            sums = row.astype(plan.sums_dtype) if separate else row
        free = self._free[plan.sums_dtype]
        scratch = free.pop() if free else _EMPTY
        if scratch.size < plan.scratch:  # the larger one replaces it in the pool
            scratch = np.empty(plan.scratch, plan.sums_dtype)
        transport, raw, raw_scratch = self._transport, row.view(np.uint8), scratch.view(np.uint8)
        buffers = raw, sums.view(np.uint8) if separate else raw, raw_scratch
        for out, into, add, put, round_first in plan.moves:
            if separate:
                _copy(round_first, sums, row)
            if blocks and not plan.one_way and len(out) <= 1 and len(into) <= 1:
                sent, to, received, source = None, NOBODY, None, NOBODY
                if out:
                    to, buffer, part, packed = out[0]
                    sent = (_packed(buffers[buffer], packed) if packed else buffers[buffer])[part]
                if into:
                    source, buffer, part, _ = into[0]
                    received = buffers[buffer][part]
                transport.exchange(sent, to, received, source, tag)
            else:
                send = transport.issend if plan.one_way else transport.isend
                requests = [transport.irecv(buffers[b][i], peer, tag) for peer, b, i, _ in into]
                for to, buffer, part, packed in out:
                    sent = (_packed(buffers[buffer], packed) if packed else buffers[buffer])[part]
                    requests.append(send(sent, to, tag))
                yield requests
            for mine, arrived in put:
                raw[mine] = raw_scratch[arrived]
            for mine, arrived in add:
                total = sums[mine]
                np.add(total, scratch[arrived], total, dtype=plan.adds_dtype, casting="same_kind")
        if separate:
            _copy(plan.round, sums, row)
        free.append(scratch)

    def finish(self, algorithm: Algorithm, row: Array) -> None:
        """Runs an algorithm on a flat buffer to its end, alone on this transport."""
        for needs in self.steps(algorithm, row, tag=0, blocks=True):
            self._transport.wait(needs or ())

    def free(self) -> None:
        """Frees the transport; collective."""
        self._transport.free()

    def plan(self, algorithm: Algorithm, cuts: int | Bounds, dtype: np.dtype[Any]) -> Plan:
        """Returns the Plan of this rank, cached by algorithm, cuts and type; `cuts` is the length
        of a buffer to be cut evenly, or the bounds of its chunks."""
        plan = self._plans.get((algorithm, cuts, dtype))
        if plan is None:
            if len(self._plans) == MOST_PLANS:
                self._plans.clear()  # the caller keeps creating new algorithms or lengths
            t = self._transport
            at = even_bounds(cuts, algorithm.chunks(t.size)) if isinstance(cuts, int) else cuts
            limits = t.message_limit, self.narrow_sums
            plan = make_plan(algorithm, t.rank, t.size, at, dtype, *limits)
            self._plans[algorithm, cuts, dtype] = plan
        return plan


_EMPTY: Array = np.empty(0)

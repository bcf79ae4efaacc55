"""The interpreter of collective algorithms: derives the messages of one rank and exchanges them.

r  this rank      p  ranks      n  elements of the buffer      s  a step of the algorithm
bounds  the element at which each chunk begins, and n at the end

Rules:

- Works interleave at every `yield`. Whatever a work needs across a `yield` must be its own: its
  scratch memory leaves the pool until the work ends.
- The order of additions, and of operands, is the same for all ways to carry out a plan, blocking or
  not: the bits of a sum depend on the algorithm and the ranks alone.
- Plans are cached by algorithm, and an algorithm is equal to itself only: a caller that creates a
  new one for each call derives its moves each time (`rooted` is cached for that reason).
- `make_plan` also tells the arrangement how much a rank sends, and tests compare runs with it.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import accumulate, pairwise, starmap
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nnmpi.collectives.step import Algorithm, ChunkRange, Step, pieces
from nnmpi.collectives.step import bounds as even_bounds
from nnmpi.comm.arguments import Array, accumulator
from nnmpi.comm.steps import Steps
from nnmpi.comm.transport.base import Transport

Bounds: TypeAlias = tuple[int, ...]
Elements: TypeAlias = tuple[tuple[int, int], ...]  # the first element and the end of each range

# (flat buffer, tag, blocks) -> steps. `blocks`: no other work of this rank is pending, so the steps
# may make blocking calls. It may differ between ranks.
AllReduce: TypeAlias = Callable[[Array, int, bool], Steps]

MOST_PLANS = 1000  # in the cache


class Move(NamedTuple):
    """The messages of one rank in one round: one each way, none, or several if they are long.

    Messages are given as slices of bytes, additions as slices of elements.
    """

    to: int
    out: tuple[slice, ...]  # bytes of the partial sums if `reduce`, else of the buffer
    source: int
    into: tuple[slice, ...]  # bytes of the scratch memory if `reduce`, else of the buffer
    reduce: bool
    add: tuple[tuple[slice, slice], ...]  # elements of the sums, and of the scratch memory
    round: tuple[slice, ...]  # complete sums to be rounded before they are sent
    single: bool  # at most one message each way


class Plan(NamedTuple):
    """All moves of one rank for buffers of one length and type, cut at the same elements.

    Sums are kept in `sums_dtype`, and partial sums travel in it. For float16 and bfloat16 buffers
    it is float32: the rank that sends a complete sum rounds it first, so complete sums travel in 16
    bits. Narrow sums are kept in the type of the buffer: each addition is made in `adds_dtype`,
    float32, and rounded. Either way the bits depend on the order of additions alone.
    """

    moves: tuple[Move, ...]
    dtype: np.dtype[Any]
    sums_dtype: np.dtype[Any]
    adds_dtype: np.dtype[Any]
    scratch: int  # elements of memory for what arrives and is to be added
    round: tuple[slice, ...]  # sums to be rounded at the end


def make_plan(
    algorithm: Algorithm,
    r: int,
    p: int,
    bounds: Bounds,
    dtype: np.dtype[Any],
    message_limit: int = 1 << 30,
    narrow_sums: bool = False,
) -> Plan:
    """Derives the plan of rank r of p; no message is longer than `message_limit` bytes."""
    chunks, sums_dtype = algorithm.chunks(p), accumulator(dtype, narrow_sums)
    assert len(bounds) == chunks + 1
    rounded = np.zeros(chunks, bool)
    moves = []
    for s in algorithm.steps(r, p):
        # partial sums travel in the wide type, complete ones in the buffer's
        itemsize = sums_dtype.itemsize if s.reduce else dtype.itemsize
        sent = _elements(s.send, bounds) if s.to >= 0 else ()
        out = _messages(sent, itemsize, message_limit)
        round_first = () if s.reduce or not out else _round(rounded, s.send, bounds)
        received = _elements(s.recv, bounds) if s.source >= 0 else ()
        arrives = _end_to_end(received) if s.reduce else received
        pairs = zip(starmap(slice, received), starmap(slice, arrives), strict=True)
        add = tuple(pair for pair in pairs if s.reduce and pair[1].start < pair[1].stop)
        into = _messages(arrives, itemsize, message_limit)
        if s.reduce and sums_dtype is not dtype:
            _refuse_rounded(rounded, s)
        if into and not s.reduce:  # complete sums arrive rounded by their sender
            for lo, hi in pieces(s.recv, chunks):
                rounded[lo:hi] = True
        if out or into:
            single = len(out) <= 1 and len(into) <= 1
            moves.append(
                Move(int(s.to), out, int(s.source), into, s.reduce, add, round_first, single)
            )
    scratch = max((m.add[-1][1].stop for m in moves if m.add), default=0)
    at_end = _round(rounded, (0, chunks), bounds)
    return Plan(tuple(moves), dtype, sums_dtype, accumulator(dtype), scratch, at_end)


def _refuse_rounded(rounded: NDArray[np.bool_], s: Step) -> None:
    """Raises ValueError if an algorithm adds to a sum that was complete, and is rounded by then."""
    for peer, (lo, hi) in ((s.to, s.send), (s.source, s.recv)):
        if peer >= 0 and any(rounded[a:b].any() for a, b in pieces((lo, hi), len(rounded))):
            raise ValueError(
                f"the algorithm adds to chunks {lo} to {hi - 1} after their complete sums were "
                "rounded to 16 bits: use float32, or 16-bit sums (--reduce-dtype, narrow_sums=True)"
            )


def _elements(chunks: ChunkRange, bounds: Bounds) -> Elements:
    """The first element and the end of each piece of a range of chunks."""
    return tuple((bounds[lo], bounds[hi]) for lo, hi in pieces(chunks, len(bounds) - 1))


def _end_to_end(received: Elements) -> Elements:
    """Places for the same numbers of elements, one after the other from 0 on."""
    return tuple(pairwise([0, *accumulate(hi - lo for lo, hi in received)]))


def _messages(ranges: Elements, itemsize: int, message_limit: int) -> tuple[slice, ...]:
    """The byte slices of ranges of elements, cut into messages of at most `message_limit` bytes."""
    step = message_limit // itemsize * itemsize
    return tuple(
        slice(i, min(i + step, hi * itemsize))
        for lo, hi in ranges
        for i in range(lo * itemsize, hi * itemsize, step)
    )


def _round(rounded: NDArray[np.bool_], range_: ChunkRange, bounds: Bounds) -> tuple[slice, ...]:
    """The element slices of a range's chunks that are not rounded yet; marks them as rounded."""
    due = [c for piece in pieces(range_, len(rounded)) for c in range(*piece) if not rounded[c]]
    rounded[due] = True
    return tuple(slice(bounds[c], bounds[c + 1]) for c in due)


def _copy(parts: tuple[slice, ...], sums: Array, array: Array) -> None:
    for part in parts:
        array[part] = sums[part]


class Interpreter:
    """Carries out algorithms on one transport; caches their plans and pools scratch memory."""

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
        """Exchanges and adds a flat buffer as the algorithm says; yields the requests it waits for.

        `blocks` allows blocking calls, which are faster. `sums` is memory for sums in a wider type.
        Without `bounds`, lengths of chunks differ by at most one.

        In each round both messages are posted at once. What arrives is added when both are
        complete, since the rank may be sending the elements to which it adds.
        """
        plan = self.plan(algorithm, row.size if bounds is None else bounds, row.dtype)
        return self.carry_out(plan, row, tag, blocks, sums)

    def carry_out(
        self, plan: Plan, row: Array, tag: int, blocks: bool = False, sums: Array | None = None
    ) -> Steps:
        """Exchanges and adds a flat buffer by a plan of this rank; yields requests as
        `steps` does.
        """
        separate = plan.sums_dtype is not plan.dtype
        if sums is None:
            sums = row.astype(plan.sums_dtype) if separate else row
        free = self._free[plan.sums_dtype]
        scratch = free.pop() if free else _EMPTY
        if scratch.size < plan.scratch:  # the larger one replaces it in the pool
            scratch = np.empty(plan.scratch, plan.sums_dtype)
        transport, raw, raw_scratch = self._transport, row.view(np.uint8), scratch.view(np.uint8)
        raw_sums = sums.view(np.uint8) if separate else raw
        for to, out, source, into, reduce, add, round_first, single in plan.moves:
            if separate:
                _copy(round_first, sums, row)
            held, target = (raw_sums, raw_scratch) if reduce else (raw, raw)
            if blocks and single:
                send, receive = held[out[0]] if out else None, target[into[0]] if into else None
                transport.exchange(send, to, receive, source, tag)
            else:
                requests = []
                for part in into:
                    requests.append(transport.irecv(target[part], source, tag))
                for part in out:
                    requests.append(transport.isend(held[part], to, tag))
                yield requests
            for mine, arrived in add:
                adds_to = sums[mine]
                np.add(
                    adds_to, scratch[arrived], adds_to, dtype=plan.adds_dtype, casting="same_kind"
                )
        if separate:
            _copy(plan.round, sums, row)
        free.append(scratch)

    def finish(self, algorithm: Algorithm, row: Array) -> None:
        """Carries out an algorithm to its end, while no other operation uses this transport."""
        for needs in self.steps(algorithm, row, tag=0, blocks=True):
            self._transport.wait(needs or ())

    def free(self) -> None:
        """Frees the transport; collective."""
        self._transport.free()

    def plan(self, algorithm: Algorithm, cuts: int | Bounds, dtype: np.dtype[Any]) -> Plan:
        """The plan of this rank for an algorithm, cached by algorithm, cuts and type."""
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

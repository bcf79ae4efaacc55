"""The exchanges of a recorded pass, and the bytes that it keeps and needs, from its list of calls.

    forward      backward
    |------------|--------|----------|       kept   first used in the forward pass, last used later
    F            B or I   W                  left   first used before W, last used in it

An array lives from the first to the last call that uses it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from nnmpi.arrays.meta.log import Call
from nnmpi.arrays.meta.memory_plan import Lifetime, lifetimes, most_alive
from nnmpi.arrays.meta.shapes import owner
from nnmpi.collectives.algorithms import Collective
from nnmpi.nn.record import join_moments, progress, ready, sum_over_ranks, uses
from nnmpi.parallel.batch_stats import GATHER, SUM
from nnmpi.parallel.step.recorded_pass import RecordedPass
from nnmpi.parallel.step.recorded_wires import all_gather_call, all_reduce_call, start_call
from nnmpi.schedules.op import Kind

STATISTICS = "statistics"
"""In place of the axis of an exchange: the ranks that share the statistics of a batch."""

MARKERS = frozenset((uses, ready, progress, join_moments, sum_over_ranks))
"""Calls in a list that run no function on arrays."""

PARTS = ((Kind.F,), (Kind.F, Kind.B), (Kind.F, Kind.I, Kind.W))
"""The kinds of passes in a list of one, two or three parts."""


class PassExchange(NamedTuple):
    """An exchange within a pass, without the ranks that take part, so that it stands for those of
    all ranks with the same layers. `edges` as in Exchange.

    axis       the axis of the mesh along which it is made, or STATISTICS
    elements   in the buffer; of one rank for an all-gather of STATISTICS
    places     the indices along the axis of the sender and the receiver of a message
    """

    axis: str
    operation: Collective
    algorithm: str
    elements: int
    dtype: np.dtype[Any]
    edges: tuple[int, ...] = ()
    places: tuple[int, ...] = ()


STARTED = {
    "start_reduce_scatter": Collective.REDUCE_SCATTER,
    "isend": Collective.MESSAGE,
}
"""Exchanges started in the background; a receive belongs to its message."""


def exchange_of_call(call: Call) -> PassExchange | None:
    """Returns the exchange that a recorded call makes or starts, or None."""
    read = _READERS.get(call.function)
    return None if read is None else read(*call.args)


def _all_reduce(comm: Any, row: Any, algorithm: str) -> PassExchange:
    return PassExchange(comm.axis, Collective.ALL_REDUCE, algorithm, row.size, row.dtype)


def _all_gather(comm: Any, buffer: Any, algorithm: str, parts: Any) -> PassExchange:
    about = Collective.ALL_GATHER, algorithm, buffer.size, buffer.dtype
    return PassExchange(comm.axis, *about, _edges(parts))


def _start(work: object, name: str, comm: Any, array: Any, *arguments: Any) -> PassExchange | None:
    operation, size = STARTED.get(name), (array.size, array.dtype)
    if operation is Collective.MESSAGE:
        return PassExchange(comm.axis, operation, "", *size, places=(comm.rank, arguments[0]))
    if operation is None:
        return None
    algorithm, parts = (*arguments, None)[:2]
    return PassExchange(comm.axis, operation, algorithm, *size, _edges(parts))


def _moments(n: int, mean: Any, *others: Any) -> PassExchange:
    row = 1 + 2 * mean.size  # the number of values; mean and sum of squares of each channel
    return PassExchange(STATISTICS, Collective.ALL_GATHER, GATHER, row, np.dtype(np.float64))


def _sum_of_statistics(sums: Any, total: Any) -> PassExchange:
    return PassExchange(STATISTICS, Collective.ALL_REDUCE, SUM, sums.size, sums.dtype)


_READERS: Mapping[Any, Any] = {
    all_reduce_call: _all_reduce,
    all_gather_call: _all_gather,
    start_call: _start,
    join_moments: _moments,
    sum_over_ranks: _sum_of_statistics,
}


def _edges(parts: Sequence[int] | None) -> tuple[int, ...]:
    return () if parts is None else tuple(accumulate(parts, initial=0))


def exchanges_of(p: RecordedPass) -> dict[Kind, Mapping[PassExchange, int]]:
    """Returns a dict: kind of pass -> the exchanges that it makes, each with how often."""
    edges = _ends(p)
    parts = (p.calls[start:stop] for start, stop in pairwise(edges))
    return {
        kind: Counter(filter(None, map(exchange_of_call, calls)))
        for kind, calls in zip(PARTS[len(edges) - 2], parts, strict=True)
    }


def _ends(p: RecordedPass) -> list[int]:
    """Returns the numbers of calls at which the passes in a list begin, and the number of calls."""
    seconds = [p.second] * p.halves
    return [0, *[p.backward] * bool(p.seeds), *seconds, len(p.calls)]


# ---- memory


class PassBytes(NamedTuple):
    """The bytes of activations that the passes of a stage keep and need, for one micro-batch.

    enters   its input
    inside   kept for the backward pass, besides input and output
    out      its output, unless that is a loss
    read     the part of its input that its own backward pass reads
    out_read the part of its output that its own backward pass reads
    through  the part of its input that is also output
    left     kept between the two halves of the backward pass
    more     a dict: kind of pass -> how far its peak is above the bytes that are kept when it
             begins
    calls    how many array functions the two passes call; 0 if a run cannot replay them
    """

    enters: int
    inside: int
    out: int
    read: int
    out_read: int
    through: int = 0
    left: int = 0
    more: Mapping[Kind, int] = {}
    calls: int = 0

    @property
    def kept(self) -> int:
        """The bytes that the stage keeps from its forward to its backward pass."""
        return self.enters + self.inside + self.out_read


def bytes_of(p: RecordedPass, inputs: Sequence[Any], outputs: Sequence[Any]) -> PassBytes:
    """Returns the bytes that the recorded passes of a stage keep and need.

    inputs    the arrays of the list that are activations which the stage takes
    outputs   those that it sends to the next stage; empty for a loss
    """
    numbers = [k for k, call in enumerate(p.calls) if call.function not in MARKERS]
    calls = [p.calls[k] for k in numbers]
    edges = [sum(k < end for k in numbers) for end in _ends(p)]
    seeds = [a for a in p.seeds if a is not None]
    uses_of = [(a, 0) for a in inputs] + [(a, edges[1] - 1) for a in outputs]
    uses_of += [(a, edges[1]) for a in seeds]  # they are there when the backward pass begins
    uses_of += [(a, edges[2] - 1) for a in (*seeds, *p.gradients)]
    blocks = lifetimes(calls, uses_of, np.ndarray)
    enters, outs = _of(blocks, inputs), _of(blocks, outputs)
    others = _of(blocks, (stand_in for stand_in, _ in p.given)).keys() | enters
    alive = [block for key, block in blocks.items() if key not in others]
    taken, out_read = _nbytes(enters.values()), 0
    out = [block for key, block in outs.items() if key not in others]
    out_read = _across(out, edges[1])
    held = [0, *(taken + _across(alive, edge) for edge in edges[1:-1])]
    spans = zip(PARTS[len(held) - 1], pairwise(edges), held, strict=True)
    size = attrgetter("nbytes")
    more = {kind: taken + most_alive(alive, *span, size) - start for kind, span, start in spans}
    kept = held[1] if len(held) > 1 else taken
    return PassBytes(
        enters=taken,
        inside=kept - taken - out_read,
        out=_nbytes(out),
        read=_across(enters.values(), edges[1]),
        out_read=out_read,
        through=_nbytes(enters[key] for key in outs.keys() & enters),
        left=held[-1] if len(held) > 2 else kept,
        more={**more, Kind.F: max(more[Kind.F], kept)},
        calls=len(calls),
    )


def _of(blocks: Mapping[int, Lifetime], arrays: Iterable[Any]) -> dict[int, Lifetime]:
    """Returns the memory blocks of given arrays, by the id of the array that owns the block."""
    owners = {id(owner(a)): None for a in arrays}
    return {key: blocks[key] for key in owners if key in blocks}


def _nbytes(blocks: Iterable[Lifetime]) -> int:
    return sum(block.nbytes for block in blocks)


def _across(blocks: Iterable[Lifetime], edge: int) -> int:
    """Returns the bytes of blocks that are in use before call number `edge`, and in it or later."""
    return _nbytes(block for block in blocks if block.first < edge <= block.last)

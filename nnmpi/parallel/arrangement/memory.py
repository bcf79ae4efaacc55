"""What a rank holds, in bytes, by formula.

P   numbers of the trained parameters that are here       s   bytes of a number
L   length of the flat buffer, with head and padding      k   running sums of the optimizer
d   ranks along dp

                 parameters        gradients            optimizer       slots       windows
local, replica   P s               P s                  k (L - head) s
node             P s, first rank   P s, twice on the    k L s / d                   sums, and
                 of a node         first rank                                       parameters
zero 1           L s               L s                  k L s / d
zero 2           L s               L s / d              k L s / d       gradients
zero 3           L s / d           L s / d              k L s / d       both
versions         P s               P s                  k L s           older versions
slices           P s               P s a buffer         k (L - head) s
served           P s               P s, or a part       k of a part
"""

from collections.abc import Callable
from typing import NamedTuple

from nnmpi.collectives.step import cut
from nnmpi.comm.allreduce.node_memory import memory_of_sums
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.flat import Piece
from nnmpi.parallel.arrangement.traffic import over
from nnmpi.schedules import highest, moves, owners_of

SLOTS = 2
"""Of ZeRO: for the gradients, and for the parameters, of two buckets."""

RUNNING_SUMS: dict[str, Callable[[float], int]] = {
    "sgd": lambda momentum: int(momentum > 0),
    "adam": lambda momentum: 2,
    "adamw": lambda momentum: 2,
    "rmsprop": lambda momentum: 1,
}
"""How many numbers an optimizer keeps for a parameter."""


class Memory(NamedTuple):
    """Bytes on one rank; what a node shares counts on the first of its ranks.

    parameters   values, frozen ones included
    gradients    of trained parameters
    optimizer    running sums
    buffers      such as running statistics
    slots        memory in which values or gradients are for a while only
    windows      shared memory of a node, beside parameters and gradients in it
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int
    slots: int
    windows: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def memory(a: Arrangement, rank: int) -> Memory:
    """What a rank holds between two steps."""
    part, s = a.part(rank), a.dtype.itemsize
    whole = sum(p.size for p in part.trained) * s
    others = _bytes_of(a, part.others, is_parameter=True)
    buffers = _bytes_of(a, part.others, is_parameter=False)
    held = _FORMULAS[a.store](a, rank, whole)
    k = RUNNING_SUMS[a.config.optimizer](a.config.momentum)
    return Memory(
        held.parameters + others,
        held.gradients,
        k * held.updated * s,
        buffers,
        held.slots,
        held.windows,
    )


class _Held(NamedTuple):
    """Of trained parameters: bytes, and how many numbers the optimizer updates."""

    parameters: int
    gradients: int
    updated: int
    slots: int = 0
    windows: int = 0


def _bytes_of(a: Arrangement, pieces: tuple[Piece, ...], is_parameter: bool) -> int:
    variables = a.graph.variables
    return sum(
        p.size * (s if variables[p.variable].dtype.startswith("float") else 8)
        for p in pieces
        if variables[p.variable].is_parameter == is_parameter
        for s in [a.dtype.itemsize]
    )


def _numbers(a: Arrangement, rank: int) -> int:
    """The length of the flat buffer without its head."""
    spans = a.part(rank).spans
    return spans[-1][1] - spans[0][0] if spans else 0


def _whole(a: Arrangement, rank: int, whole: int) -> _Held:
    return _Held(whole, whole, _numbers(a, rank))


def _node(a: Arrangement, rank: int, whole: int) -> _Held:
    """Each rank updates its slice of each bucket; the node's first rank has what all share."""
    part, s, group = a.part(rank), a.dtype.itemsize, a.mesh.group(rank, "dp")
    node = a.cluster.beside(group)[a.cluster.nodes[rank]]
    is_first, p, r = node[0] == rank, len(node), node.index(rank)
    first = part.spans[0][0]
    own = 0
    for start, stop, _ in part.buckets:
        lo, hi = start + cut(stop - start, p, r), start + cut(stop - start, p, r + 1)
        own += max(hi - max(lo, first), 0)
    n = part.spans[-1][1]
    one = memory_of_sums(n, a.dtype, 1)
    segment = memory_of_sums(n, a.dtype, 2) - one
    windows = (one if is_first else segment) + n * s * is_first
    return _Held(whole * is_first, whole * (1 + is_first), own, windows=windows)


def _zero(a: Arrangement, rank: int, whole: int) -> _Held:
    part, s, zero = a.part(rank), a.dtype.itemsize, a.config.zero
    own, lengths = 0, []
    for bucket in part.buckets:
        ranks = over(a, rank, bucket)
        n, p, r = bucket.stop - bucket.start, len(ranks), ranks.index(rank)
        own += cut(n, p, r + 1) - cut(n, p, r)
        lengths.append(n)
    flat, longest = part.spans[-1][1] * s, max(lengths) * s
    kept = own * s
    gradients = SLOTS * longest
    ordered = lengths[::-1]  # in the order of memory
    weights = sum(max(ordered[i::SLOTS]) for i in range(min(SLOTS, len(ordered)))) * s
    return {
        1: _Held(flat, flat, own),
        2: _Held(flat, kept, own, gradients),
        3: _Held(kept, kept, own, gradients + weights),
    }[zero]


def _versions(a: Arrangement, rank: int, whole: int) -> _Held:
    """Stage s of p has as many versions as micro-batches in flight: p - s."""
    older = a.mesh.axes["pp"] - a.mesh.coordinates(rank)["pp"] - 1
    return _Held(whole, whole, _numbers(a, rank), older * _numbers(a, rank) * a.dtype.itemsize)


def _slices(a: Arrangement, rank: int, whole: int) -> _Held:
    plan = moves(owners_of(a.config.slices, a.mesh.size), rank)
    return _Held(whole, whole * highest(plan), _numbers(a, rank))


def _served(a: Arrangement, rank: int, whole: int) -> _Held:
    n = _numbers(a, rank)
    if rank < a.mesh.size:
        return _Held(whole, whole, 0)
    k = rank - a.mesh.size
    own = cut(n, a.servers, k + 1) - cut(n, a.servers, k)
    return _Held(whole, own * a.dtype.itemsize, own)


_FORMULAS: dict[str, Callable[[Arrangement, int, int], _Held]] = {
    "local": _whole,
    "replica": _whole,
    "node": _node,
    "zero 1": _zero,
    "zero 2": _zero,
    "zero 3": _zero,
    "versions": _versions,
    "slices": _slices,
    "served": _served,
}

"""What a rank sends along tp in a step, and how long the sums are.

Sharded layers name their messages (`tensor/patterns.py`), and each collective has its price here.
With sequence parallelism gradients of which ranks have terms are summed once a step, too.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from nnmpi.collectives.algorithms import ALL_GATHERS, REDUCE_SCATTERS
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.collectives import Sent, all_reduced, carried_out, owned
from nnmpi.parallel.arrangement.program import Passes, forward, passes_of
from nnmpi.parallel.arrangement.traffic_experts import counts, exchanged
from nnmpi.parallel.tensor.ops import SHORT
from nnmpi.parallel.tensor.patterns import Collective, LayerMessage
from nnmpi.parallel.tensor.sharding import ShardedLayer
from nnmpi.schedules.op import Kind

LOSS_NUMBERS = 4
"""Of a label, that each rank tells the others for a loss on sharded classes."""


def along_tp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Messages of sharded layers, and the table of a loss on sharded classes."""
    group = a.mesh.group(rank, "tp")
    if len(group) == 1:
        return
    at, passes = a.mesh.coordinates(rank), passes_of(a, rank, micro)
    for n in sums_of(a, rank, micro):
        name = "doubling" if is_short(a, n) else a.sums_by(group)
        yield all_reduced(a, name, group, rank, n, a.dtype)
    for layer, message, n in _messages(a, rank, passes):
        if message.row.by is not Collective.ALL_REDUCE:
            yield from PRICES[message.row.by](a, rank, layer, message, n)
    last = len(a.stages) - 1
    if a.sharding.output is not None and last in a.held(rank).stages:
        for n in forward(passes, last):
            numbers = LOSS_NUMBERS * len(group) * rows_of_loss(a, n, at)
            yield carried_out(ALL_GATHERS["ring"], group, rank, numbers, a.updated_dtype)


def rows_of_loss(a: Arrangement, samples: int, at: Mapping[str, int]) -> int:
    """How many rows of scores a rank has: one a sample, or one a position."""
    n, _, *positions = a.local_shape(a.graph.outputs[0], samples, at)
    return n * prod(positions)


def sums_of(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[int]:
    """How many numbers each sum of a rank adds up in a step."""
    for _, message, samples in _messages(a, rank, passes_of(a, rank, micro)):
        if message.row.by is Collective.ALL_REDUCE:
            yield _numbers(a, rank, message, samples)
    yield from filter(None, [_terms(a, rank)])


def is_short(a: Arrangement, n: int) -> bool:
    """Whether latency counts in a sum of so many activations."""
    return n * a.dtype.itemsize <= SHORT


def _terms(a: Arrangement, rank: int) -> int:
    """How many gradients a rank sums, since ranks have terms: those that it updates."""
    terms = a.held(rank).stretches(a.sharding.terms)
    pairs = product(owned(a, rank) if terms else (), terms)
    return sum(max(min(hi, stop) - max(lo, start), 0) for (lo, hi), (start, stop) in pairs)


# ---- messages of sharded layers


OPERATIONS: Mapping[Kind, frozenset[Kind]] = {
    Kind.F: frozenset({Kind.F, Kind.RECOMPUTE}),
    Kind.I: frozenset({Kind.B, Kind.I}),
    Kind.W: frozenset({Kind.B, Kind.W}),
}
"""The operations of a program in which the messages of a pass are sent."""


def _messages(
    a: Arrangement, rank: int, passes: Passes
) -> Iterator[tuple[ShardedLayer, LayerMessage, int]]:
    """The messages of a step, each with its layer and the samples of the pass that sends it.

    In the first stage all of a backward pass in two halves is done in the second one.
    """
    for s in a.held(rank).stages:
        here = (layer for layer in a.sharding.layers if layer.node in a.stages[s])
        for layer in here:
            for message in layer.sends if a.runs(layer.node, rank) else ():
                kinds = frozenset[Kind]().union(*(OPERATIONS[kind] for kind in message.passes))
                for kind in kinds if s else {Kind.W if k is Kind.I else k for k in kinds}:
                    yield from ((layer, message, n) for n in passes[s, kind])


def _numbers(a: Arrangement, rank: int, message: LayerMessage, samples: int) -> int:
    """How many numbers a message carries, of all ranks along tp together."""
    cp = a.mesh.coordinates(rank)["cp"]
    return a.sharding.sequences.share(message.numbers, cp) * samples


def _by_ring(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Sent]:
    """Half an all-reduce, whose chunks are the parts of the ranks."""
    numbers, bounds = _numbers(a, rank, message, samples), message.bounds
    edges, group = [numbers * b // bounds[-1] for b in bounds], a.mesh.group(rank, "tp")
    yield carried_out(RINGS[message.row.by], group, rank, numbers, a.dtype, edges)


RINGS = {
    Collective.ALL_GATHER: ALL_GATHERS["ring"],
    Collective.REDUCE_SCATTER: REDUCE_SCATTERS["ring"],
}
PRICES = {
    **dict.fromkeys(RINGS, _by_ring),
    Collective.GATHER_COUNTS: counts,
    Collective.ALL_TO_ALL: exchanged,
}
"""What a rank sends for a message of a layer in a pass; of an all-reduce, see `sums_of`."""

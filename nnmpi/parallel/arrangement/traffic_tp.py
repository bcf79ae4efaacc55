"""What a rank sends along tp in a step, and how long the sums are.

Activations of sharded layers are summed or gathered. With sequence parallelism they are gathered
and reduce-scattered, and gradients of which ranks have terms are summed once a step:

              forward             back
    column    gather              gather, reduce-scatter
    row       reduce-scatter      gather, in each half of a backward pass that is in two
    rows      reduce-scatter      gather
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod

from nnmpi.collectives.algorithms import ALL_GATHERS, REDUCE_SCATTERS
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.program import Passes, forward, passes_of
from nnmpi.parallel.arrangement.sent import Sent, all_reduced, carried_out
from nnmpi.parallel.arrangement.traffic_experts import of_experts
from nnmpi.parallel.tensor.ops import SHORT
from nnmpi.parallel.tensor.sharding import ShardedLayer
from nnmpi.schedules.op import Kind

LOSS_NUMBERS = 4
"""Of a label, that each rank tells the others for a loss on sharded classes."""


def along_tp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Sums and gathers of sharded layers, and the table of a loss on sharded classes."""
    group, ring = a.mesh.group(rank, "tp"), ALL_GATHERS["ring"]
    if len(group) == 1:
        return
    at, passes = a.mesh.coordinates(rank), passes_of(a, rank, micro)
    for n in sums_of(a, rank, micro):
        name = "doubling" if is_short(a, n) else a.sums_by(group)
        yield all_reduced(a, name, group, rank, n, a.dtype)
    for s, layer in _own_layers(a, rank):
        yield from _along_positions(a, rank, s, layer, passes)
        yield from of_experts(a, rank, s, layer, passes)
        for n in forward(passes, s) if layer.gathered else ():
            numbers = a.sharding.positions.share(layer.gathered, at["cp"]) * n
            edges = [numbers * b // layer.bounds[-1] for b in layer.bounds]
            yield carried_out(ring, group, rank, numbers, a.dtype, edges)
    last = len(a.stages) - 1
    if a.sharding.output is not None and last in a.model_on(rank).stages:
        for n in forward(passes, last):
            numbers = LOSS_NUMBERS * len(group) * rows_of_loss(a, n, at)
            yield carried_out(ring, group, rank, numbers, a.updated_dtype)


def rows_of_loss(a: Arrangement, samples: int, at: Mapping[str, int]) -> int:
    """How many rows of scores a rank has: one a sample, or one a position."""
    n, _, *positions = a.local_shape(a.graph.outputs[0], samples, at)
    return n * prod(positions)


def sums_of(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[int]:
    """How many numbers each sum of a rank adds up in a step."""
    passes, cp = passes_of(a, rank, micro), a.mesh.coordinates(rank)["cp"]
    share = a.sharding.positions.share
    for s, layer in _own_layers(a, rank):
        summed, back = share(layer.summed, cp), share(layer.back, cp)
        yield from (summed * n for n in forward(passes, s) if summed)
        yield from (back * n for n in micro if back)
    yield from filter(None, [_terms(a, rank)])


def is_short(a: Arrangement, n: int) -> bool:
    """Whether latency counts in a sum of so many activations."""
    return n * a.dtype.itemsize <= SHORT


def _terms(a: Arrangement, rank: int) -> int:
    """How many gradients a rank sums, since ranks have terms: those that it updates."""
    terms = a.model_on(rank).stretches(a.sharding.terms)
    pairs = product(a.owned_ranges(rank) if terms else (), terms)
    return sum(max(min(hi, stop) - max(lo, start), 0) for (lo, hi), (start, stop) in pairs)


def _along_positions(
    a: Arrangement, rank: int, stage: int, layer: ShardedLayer, passes: Passes
) -> Iterator[Sent]:
    """Gathers and reduce-scatters of a layer with one side that is cut along positions.

    In the first stage nothing is done in the first half of a backward pass.
    """
    if not layer.moved:
        return
    gather, scatter = ALL_GATHERS["ring"], REDUCE_SCATTERS["ring"]
    needs = a.graph.edges[a.graph.nodes[layer.node].inputs[0]].requires_grad
    first = {Kind.B, Kind.I if stage else Kind.W} if needs else set[Kind]()
    second = {Kind.B, Kind.W}
    back = {
        "column": ((scatter, first), (gather, second)),
        "row": ((gather, first | second),),
        "rows": ((gather, second),),
    }[layer.how]
    forward = gather if layer.how == "column" else scatter
    for plan, kinds in ((forward, {Kind.F, Kind.RECOMPUTE}), *back):
        for n in (n for kind in kinds for n in passes[stage, kind]):
            edges = [layer.moved * n * b // layer.positions[-1] for b in layer.positions]
            group = a.mesh.group(rank, "tp")
            yield carried_out(plan, group, rank, edges[-1], a.dtype, edges)


def _own_layers(a: Arrangement, rank: int) -> Iterator[tuple[int, ShardedLayer]]:
    """The sharded layers in the stages of a rank, each with its stage."""
    for s in a.model_on(rank).stages:
        for layer in a.sharding.layers:
            if layer.node in a.stages[s] and a.runs(layer.node, rank):
                yield s, layer

"""What a rank sends in a step, axis by axis: exactly, from the plans that are carried out.

    dp     gradients, parameters of ZeRO, statistics of BatchNorm: along dp and cp
    cp     keys, values and their gradients
    tp     sums and gathers of activations, and of the loss on sharded classes; with sequence
           parallelism, reduce-scatters, and gradients of which ranks have terms
    pp     activations and their gradients
    model  the agreement of ranks that hold one model, after the sums

Counted are messages between ranks. Through memory that a node shares nothing is sent, and what the
MPI library sends in its own all-reduce is not known.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TypeAlias

from nnmpi.collectives.algorithms import ALGORITHMS, ALL_GATHERS
from nnmpi.mesh import MODEL
from nnmpi.nn.graph import Node
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.program import forward, micro_batches, passes_of
from nnmpi.parallel.arrangement.sent import FLOAT64, Sent, carried_out, doubled
from nnmpi.parallel.arrangement.traffic_tp import along_tp

NORMS = "BatchNorm1d", "BatchNorm2d"

WISH, REPORT = Sent(8, 1), Sent(16, 1)
"""What stages of PipeDream tell each other of a batch, forward and back."""


Traffic: TypeAlias = Mapping[str, Sent]
"""What a rank sends along each axis in a step."""


# ---- along dp


def _dp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """What the store sends, and statistics."""
    yield from a.store.sends(a, rank, len(micro))
    yield from a.store.gathers(a, rank, len(micro))
    for sent in _statistics(a, rank):
        yield sent.times(len(micro))


def _statistics(a: Arrangement, rank: int) -> Iterator[Sent]:
    """BatchNorm of a micro-batch: moments forward, and sums for the gradient of its input."""
    group, p = a.replicas(rank), len(a.replicas(rank))
    if p == 1 or a.config.reproducible:
        return
    for node, row in moments(a, rank):
        yield carried_out(ALL_GATHERS["halving"], group, rank, p * row, FLOAT64)
        if a.graph.edges[node.inputs[0]].requires_grad:
            doubling = ALGORITHMS["doubling"]
            yield carried_out(doubling, group, rank, row - 1, a.updated_dtype)


def moments(a: Arrangement, rank: int) -> Iterator[tuple[Node, int]]:
    """The nodes of BatchNorm in the stages of a rank, and the numbers of a row of moments: samples,
    and two of each channel."""
    for s in a.model_on(rank).stages:
        for node in (a.graph.nodes[k] for k in a.stages[s] if a.runs(k, rank)):
            if node.kind in NORMS:
                at = a.mesh.coordinates(rank)
                yield node, 1 + 2 * a.local_shape(node.outputs[0], 1, at)[1]


# ---- along cp


def _cp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Keys and values around the ring, forward and back, and their gradients to their owners."""
    at, cut = a.mesh.coordinates(rank), a.sharding.sequences
    width = (a.dtype if a.cluster.has_devices else a.updated_dtype).itemsize
    passes, nodes = passes_of(a, rank, micro), a.graph.nodes
    here = [(s, k) for s in a.model_on(rank).stages for k in a.stages[s] if k in cut.rings]
    for s, k in here:
        e, causal = nodes[k].inputs[0], bool(nodes[k].settings["is_causal"])
        of_position = prod(a.local_shape(e, 1, at)[2:]) // 3 * 2 * width
        owners = [(at["cp"] - s) % cut.ranks for s in range(cut.ranks)]
        around = [cut.count(r) for r in owners[:-1]]
        home = [cut.keys_seen(at["cp"], r, causal) for r in owners[1:]]
        for n in forward(passes, s):
            yield from (Sent(keys * n * of_position, 1) for keys in around)
        for n in micro if a.graph.edges[e].requires_grad else ():
            yield from (Sent(keys * n * of_position, 1) for keys in (*around, *home))


# ---- along pp, and tp too


def _pp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Activations to the next stage, and their gradients to the one before."""
    at, stages = a.mesh.coordinates(rank), a.division.stages
    last = len(stages) - 1
    for s in a.model_on(rank).stages:
        ahead = stages[s + 1].takes if s < last else ()
        back = [e for e in stages[s].takes if a.graph.edges[e].requires_grad and s > 0]
        for n in micro:
            yield from (Sent(a.local_bytes(e, n, at), 1) for e in (*ahead, *back))
            if not a.steps_together:
                yield WISH.times(s < last) + REPORT.times(s > 0)


def _model(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Loss, stop, not finite, squares, and one number a tied parameter."""
    group = a.mesh.group(rank, *MODEL)
    if len(group) > 1 and a.steps_together:
        yield doubled(group, rank, 4 + len(a.tied))


TRAFFIC: Mapping[str, Callable[[Arrangement, int, Sequence[int]], Iterator[Sent]]] = {
    "dp": _dp,
    "cp": _cp,
    "tp": along_tp,
    "pp": _pp,
    "model": _model,
}
"""What a rank sends along each axis, for micro-batches of so many samples."""


def traffic(a: Arrangement, rank: int, batch: int) -> Traffic:
    """What a rank that computes sends in a step over a batch of so many samples."""
    micro = micro_batches(a, rank, batch)
    return {axis: sum(along(a, rank, micro), Sent()) for axis, along in TRAFFIC.items()}


def parameters_sent(a: Arrangement, rank: int, batch: int) -> Sent:
    """What of the traffic along dp is parameters, which ZeRO gathers."""
    return sum(a.store.gathers(a, rank, len(micro_batches(a, rank, batch))), Sent())

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

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from nnmpi.collectives.algorithms import (
    ALGORITHMS,
    ALL_GATHERS,
    BROADCASTS,
    REDUCE_SCATTERS,
)
from nnmpi.collectives.step import bounds
from nnmpi.nn.graph import Node
from nnmpi.parallel.arrangement.arrangement import NOT_TIED, Arrangement, users_of
from nnmpi.parallel.arrangement.collectives import (
    Sent,
    across_stages,
    all_reduced,
    carried_out,
    over,
)
from nnmpi.parallel.arrangement.program import forward, gathered, micro_batches, passes_of
from nnmpi.parallel.arrangement.traffic_tp import along_tp
from nnmpi.parallel.stores import scalar_count
from nnmpi.schedules.reduction_tree import Action, moves, owners_of

FLOAT64 = np.dtype(np.float64)
NORMS = "BatchNorm1d", "BatchNorm2d"

WISH, REPORT = Sent(8, 1), Sent(16, 1)
"""What stages of PipeDream tell each other of a batch, forward and back."""


class Traffic(NamedTuple):
    """What a rank sends along each axis in a step."""

    dp: Sent = Sent()
    cp: Sent = Sent()
    tp: Sent = Sent()
    pp: Sent = Sent()
    model: Sent = Sent()


def traffic(a: Arrangement, rank: int, batch: int) -> Traffic:
    """What a rank that computes sends in a step over a batch of so many samples."""
    micro = micro_batches(a, rank, batch)
    along = (axis(a, rank, micro) for axis in (_dp, _cp, along_tp, _pp, _model))
    return Traffic(*(sum(sent, Sent()) for sent in along))


def parameters_sent(a: Arrangement, rank: int, batch: int) -> Sent:
    """What of the traffic along dp is parameters, which ZeRO gathers."""
    if not a.store.startswith("zero"):
        return Sent()
    return sum(_gathered(a, rank, len(micro_batches(a, rank, batch))), Sent())


def _doubled(group: Sequence[int], rank: int, n: int) -> Sent:
    """A short row of float64."""
    return carried_out(ALGORITHMS["doubling"], group, rank, n, FLOAT64)


# ---- along dp


def _dp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    held, group = a.held(rank), a.replicas(rank)
    if a.store == "node":
        yield _doubled(group, rank, 1)  # the squares
    if a.is_mixed and a.store in ("node", "replica", "local"):
        yield _doubled(group, rank, scalar_count(held.trained))
    if a.store in ("node", "replica"):
        for bucket in held.buckets:
            n, ranks = bucket.stop - bucket.start, over(a, rank, bucket)
            yield all_reduced(a, a.algorithm, ranks, rank, n, a.dtype)
    if a.store == "slices":
        yield from _along_the_tree(a, rank, group)
    if a.store.startswith("zero"):
        yield _doubled(group, rank, len(held.trained) + 2 + 3)  # scalars, squares, orders
        yield from _scattered(a, rank, group, len(micro))
        yield from _gathered(a, rank, len(micro))
    for sent in _statistics(a, rank, group):
        yield sent.times(len(micro))


def _along_the_tree(a: Arrangement, rank: int, group: tuple[int, ...]) -> Iterator[Sent]:
    """Gradients of slices, each with a row of moments; the first rank broadcasts the sum."""
    plan = moves(owners_of(a.config.slices, len(group)), rank)
    sends = sum(move.action is Action.SEND for move in plan)
    spans = a.held(rank).spans
    rows = (_moments(a, node, rank) for node in _own_nodes(a, rank) if node.kind in NORMS)
    for n, dtype in ((spans[-1][1], a.dtype), (sum(rows), FLOAT64)):
        yield Sent(n * dtype.itemsize, 1).times(sends)
        yield carried_out(BROADCASTS["tree"], group, rank, n, dtype)


def _scattered(a: Arrangement, rank: int, group: tuple[int, ...], micro: int) -> Iterator[Sent]:
    """Gradients, in stages 2 and 3 of ZeRO after each backward pass of each stage."""
    held = a.held(rank)
    for bucket in sorted(held.buckets):
        n, ranks = bucket.stop - bucket.start, over(a, rank, bucket)
        if ranks == group and a.algorithm in REDUCE_SCATTERS:
            once = carried_out(REDUCE_SCATTERS[a.algorithm], ranks, rank, n, a.dtype)
        else:
            once = all_reduced(a, a.algorithm, ranks, rank, n, a.dtype)
        yield once.times(1 if a.store == "zero 1" else micro * len(users_of(held.inside(bucket))))
        if a.scatters and bucket.tied != NOT_TIED:
            edges, r = bounds(n, len(group)), group.index(rank)
            own, stages = edges[r + 1] - edges[r], across_stages(a, rank, bucket, "pp")
            yield all_reduced(a, a.algorithm, stages, rank, own, a.updated_dtype)


def _gathered(a: Arrangement, rank: int, micro: int) -> Iterator[Sent]:
    """Parameters of ZeRO, once after the update, or in stage 3 whenever their bucket is used."""
    uses = gathered(a, rank, micro) if a.store == "zero 3" else {}
    for k, bucket in enumerate(sorted(a.held(rank).buckets)):
        n, ranks = bucket.stop - bucket.start, over(a, rank, bucket)
        parameters = carried_out(ALL_GATHERS["ring"], ranks, rank, n, a.dtype)
        yield parameters.times(uses[k] if a.store == "zero 3" else 1)


def _statistics(a: Arrangement, rank: int, group: tuple[int, ...]) -> Iterator[Sent]:
    """BatchNorm of a micro-batch: moments forward, and sums for the gradient of its input."""
    p = len(group)
    if p == 1 or a.strategy == "reproducible":
        return
    for node in _own_nodes(a, rank):
        if node.kind not in NORMS:
            continue
        row = _moments(a, node, rank)
        yield carried_out(ALL_GATHERS["halving"], group, rank, p * row, FLOAT64, bounds(p * row, p))
        if a.graph.edges[node.inputs[0]].requires_grad:
            doubling = ALGORITHMS["doubling"]
            yield carried_out(doubling, group, rank, row - 1, a.updated_dtype)


def _moments(a: Arrangement, node: Node, rank: int) -> int:
    """The numbers of a row: samples, and two moments of each channel."""
    return 1 + 2 * a.local_shape(node.outputs[0], 1, a.mesh.coordinates(rank))[1]


def _own_nodes(a: Arrangement, rank: int) -> Iterator[Node]:
    for s in a.held(rank).stages:
        yield from (a.graph.nodes[k] for k in a.stages[s] if a.runs(k, rank))


# ---- along cp


def _cp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Keys and values around the ring, forward and back, and their gradients to their owners."""
    at, cut = a.mesh.coordinates(rank), a.sharding.sequences
    width = (a.dtype if a.cluster.has_devices else a.updated_dtype).itemsize
    passes, nodes = passes_of(a, rank, micro), a.graph.nodes
    here = [(s, k) for s in a.held(rank).stages for k in a.stages[s] if k in cut.rings]
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
    at, last = a.mesh.coordinates(rank), len(a.stages) - 1
    for s in a.held(rank).stages:
        ahead = a.crossing(s + 1) if s < last else ()
        back = [e for e in a.crossing(s) if a.graph.edges[e].requires_grad] if s > 0 else []
        for n in micro:
            yield from (Sent(a.local_bytes(e, n, at), 1) for e in (*ahead, *back))
            if a.strategy == "pipedream":
                yield WISH.times(s < last) + REPORT.times(s > 0)


def _model(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Loss, stop, not finite, squares, and one number a tied parameter."""
    group = a.mesh.group(rank, "pp", "tp")
    if len(group) > 1 and a.strategy != "pipedream":
        yield _doubled(group, rank, 4 + len(a.tied))

"""What a rank sends in a step, axis by axis: exactly, from the plans that are carried out.

    dp     gradients, parameters of ZeRO, statistics of BatchNorm
    tp     sums and gathers of activations, and of the loss on sharded classes
    pp     activations and their gradients
    model  the agreement of ranks that hold one model, after the sums

Counted are messages between ranks. Through memory that a node shares nothing is sent, and what the
MPI library sends in its own all-reduce is not known.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from nnmpi.collectives import verify
from nnmpi.collectives.algorithms import (
    ALGORITHMS,
    ALL_GATHERS,
    BROADCASTS,
    REDUCE_SCATTERS,
    among,
)
from nnmpi.collectives.step import Algorithm, bounds
from nnmpi.comm.allreduce.interpreter import make_plan
from nnmpi.nn.graph import Node
from nnmpi.parallel.arrangement.arrangement import NOT_TIED, Arrangement, Bucket, users_of
from nnmpi.parallel.arrangement.program import gathered, micro_batches
from nnmpi.parallel.stores import scalar_count
from nnmpi.parallel.tensor.ops import SHORT
from nnmpi.parallel.tensor.sharded_layer import ShardedLayer
from nnmpi.schedules.reduction_tree import Action, moves, owners_of

FLOAT64 = np.dtype(np.float64)
NORMS = "BatchNorm1d", "BatchNorm2d"
LOSS_NUMBERS = 4
"""Of a sample, that each rank tells the others for a loss on sharded classes."""


class Sent(NamedTuple):
    """Bytes and messages."""

    bytes: int = 0
    messages: int = 0

    def __add__(self, other: object) -> "Sent":
        assert isinstance(other, Sent)
        return Sent(self.bytes + other.bytes, self.messages + other.messages)

    def times(self, n: int) -> "Sent":
        """So many of it."""
        return Sent(self.bytes * n, self.messages * n)


WISH, REPORT = Sent(8, 1), Sent(16, 1)
"""What stages of PipeDream tell each other of a batch, forward and back."""


class Traffic(NamedTuple):
    """What a rank sends along each axis in a step."""

    dp: Sent = Sent()
    tp: Sent = Sent()
    pp: Sent = Sent()
    model: Sent = Sent()


def traffic(a: Arrangement, rank: int, batch: int) -> Traffic:
    """What a rank that computes sends in a step over a batch of so many samples."""
    micro = micro_batches(a, rank, batch)
    along = (axis(a, rank, micro) for axis in (_dp, _tp, _pp, _model))
    return Traffic(*(sum(sent, Sent()) for sent in along))


# ---- collectives


def carried_out(
    algorithm: Algorithm,
    group: Sequence[int],
    rank: int,
    n: int,
    dtype: np.dtype,
    at: Sequence[int] = (),
) -> Sent:
    """What a rank sends in an algorithm over n numbers; `at` are the edges of its chunks."""
    p = len(group)
    edges = tuple(at) or bounds(n, algorithm.chunks(p))
    plan = make_plan(algorithm, group.index(rank), p, edges, dtype)
    parts = [part for move in plan.moves for part in move.out]
    return Sent(sum(part.stop - part.start for part in parts), len(parts))


def all_reduced(
    a: Arrangement, name: str, group: Sequence[int], rank: int, n: int, dtype: np.dtype
) -> Sent:
    """What a rank sends in an all-reduce by name."""
    if len(group) == 1 or name in ("mpi", "nccl"):  # which know their own ways
        return Sent()
    nodes = a.cluster.beside(tuple(group))
    if name in ("shared", "hierarchical") and len(nodes) > 1:
        first = tuple(group.index(ranks[0]) for ranks in nodes.values())
        return carried_out(among(ALGORITHMS["ring"], lambda p: first), group, rank, n, dtype)
    if name == "shared":
        return Sent()
    algorithm = ALGORITHMS.get(name) or verify.proven(name, [len(group)])
    return carried_out(algorithm, group, rank, n, dtype)


def _doubled(group: Sequence[int], rank: int, n: int) -> Sent:
    """A short row of float64."""
    return carried_out(ALGORITHMS["doubling"], group, rank, n, FLOAT64)


# ---- along dp


def _dp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    held, group = a.held(rank), a.mesh.group(rank, "dp")
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
        yield from _scattered_and_gathered(a, rank, group, len(micro))
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


def over(a: Arrangement, rank: int, bucket: Bucket) -> tuple[int, ...]:
    """The ranks that sum a bucket."""
    if bucket.tied == NOT_TIED:
        return a.mesh.group(rank, "dp")
    stages = a.division.ranks()[a.held(rank).trained[bucket.tied].variable]
    ranks = a.mesh.group(rank, "dp", "pp")
    return tuple(r for r in ranks if a.mesh.coordinates(r)["pp"] in stages)


def _scattered_and_gathered(
    a: Arrangement, rank: int, group: tuple[int, ...], micro: int
) -> Iterator[Sent]:
    """Gradients, in stages 2 and 3 after each backward pass of each stage; and parameters once
    after the update, or in stage 3 whenever their bucket is used."""
    held = a.held(rank)
    uses = gathered(a, rank, micro) if a.store == "zero 3" else {}
    for k, bucket in enumerate(sorted(held.buckets)):
        n, ranks = bucket.stop - bucket.start, over(a, rank, bucket)
        if ranks == group and a.algorithm in REDUCE_SCATTERS:
            once = carried_out(REDUCE_SCATTERS[a.algorithm], ranks, rank, n, a.dtype)
        else:
            once = all_reduced(a, a.algorithm, ranks, rank, n, a.dtype)
        yield once.times(1 if a.store == "zero 1" else micro * len(users_of(held.inside(bucket))))
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
    tp = a.mesh.coordinates(rank)["tp"]
    return 1 + 2 * a.local_shape(node.outputs[0], 1, tp)[1]


def _own_nodes(a: Arrangement, rank: int) -> Iterator[Node]:
    for s in a.held(rank).stages:
        yield from (a.graph.nodes[k] for k in a.stages[s] if a.runs(k, rank))


# ---- along tp, pp, and both


def sums_along_tp(
    a: Arrangement, layers: Iterable[ShardedLayer], micro: Sequence[int]
) -> Iterator[int]:
    """How many numbers each sum of a step adds up along tp."""
    for layer in layers:
        yield from (layer.summed * n for n in _forward(a, micro))
        yield from (layer.back * n for n in micro)


def _forward(a: Arrangement, micro: Sequence[int]) -> list[int]:
    """The samples of each forward pass; one that is computed again is there twice."""
    return [*micro] * (2 if a.config.recompute else 1)


def own_layers(a: Arrangement, rank: int) -> list[ShardedLayer]:
    """The sharded layers in the stages of a rank."""
    own = {k for s in a.held(rank).stages for k in a.stages[s]}
    return [layer for layer in a.sharding.layers if layer.node in own]


def _tp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Sums and gathers of sharded layers, and the table of a loss on sharded classes."""
    group, layers, ring = a.mesh.group(rank, "tp"), own_layers(a, rank), ALL_GATHERS["ring"]
    for n in sums_along_tp(a, layers, micro):
        name = "doubling" if is_short(a, n) else a.sums_by(group)
        yield all_reduced(a, name, group, rank, n, a.dtype)
    for layer in layers:
        for n in _forward(a, micro) if layer.gathered else ():
            numbers = layer.gathered * n
            edges = [numbers * b // layer.bounds[-1] for b in layer.bounds]
            yield carried_out(ring, group, rank, numbers, a.dtype, edges)
    has_loss = len(a.stages) - 1 in a.held(rank).stages
    if len(group) > 1 and a.sharding.output is not None and has_loss:
        for n in _forward(a, micro):
            numbers = LOSS_NUMBERS * len(group) * n
            yield carried_out(ring, group, rank, numbers, a.updated_dtype)


def is_short(a: Arrangement, n: int) -> bool:
    """Whether latency counts in a sum of so many activations."""
    return n * a.dtype.itemsize <= SHORT


def _pp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Activations to the next stage, and their gradients to the one before."""
    tp, last = a.mesh.coordinates(rank)["tp"], len(a.stages) - 1
    for s in a.held(rank).stages:
        ahead = a.crossing(s + 1) if s < last else ()
        back = [e for e in a.crossing(s) if a.graph.edges[e].requires_grad] if s > 0 else []
        for n in micro:
            yield from (Sent(a.local_bytes(e, n, tp), 1) for e in (*ahead, *back))
            if a.strategy == "pipedream":
                yield WISH.times(s < last) + REPORT.times(s > 0)


def _model(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Sent]:
    """Loss, stop, not finite, squares, and one number a tied parameter."""
    group = a.mesh.group(rank, "pp", "tp")
    if len(group) > 1 and a.strategy != "pipedream":
        yield _doubled(group, rank, 4 + len(a.tied))

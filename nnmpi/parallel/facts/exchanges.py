"""Computes what a rank exchanges with others in a step, by walking its list of operations.

    F B I W RECOMPUTE  what the recording of the pass has found (`passes.py`)
    SEND_F SEND_B      a message for each tensor that crosses the boundary between two stages
    SUM GATHER         a collective on a bucket, by kind of store
    TIES TERMS AGREE   sums at the end of the step

The row `exchanges` of a kind of store or strategy may say otherwise.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from math import prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from nnmpi.arrays.dtypes import types_of
from nnmpi.collectives.algorithms import REDUCE_SCATTERS, Collective
from nnmpi.collectives.step import chunk_start
from nnmpi.optim.optimizer import Optimizer
from nnmpi.optim.rules import optimizer_named
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import (
    FLOAT64,
    SCALARS,
    AxisExchange,
    Exchange,
    new_exchange,
)
from nnmpi.parallel.arrangement.flat_buffer import scalar_count
from nnmpi.parallel.arrangement.rank_model import NOT_TIED
from nnmpi.parallel.batch_stats import GATHER as GATHER_MOMENTS
from nnmpi.parallel.facts.passes import STATISTICS, PassExchange
from nnmpi.parallel.mesh import MODEL
from nnmpi.parallel.step.update import DECIDED
from nnmpi.parallel.step_list.chain import buckets_of
from nnmpi.parallel.stores.buckets import GATHER
from nnmpi.parallel.tensor.ops import sum_algorithm
from nnmpi.schedules.op import PASSES, SENDS, Kind, Op

WORDS = {"tp": "activations", "cp": "keys", "pp": "activations", "model": "agreement"}
"""By axis, the content of exchanges within passes; along dp it is the moments of BatchNorm."""


# ---- within passes


def exchange_in_pass(
    a: Arrangement, rank: int, made: PassExchange, kind: Kind, stage: int
) -> AxisExchange:
    """Returns an exchange in a stage's pass as this rank's, with its group."""
    axis, elements, algorithm = made.axis, made.elements, made.algorithm
    if axis == STATISTICS:
        axis, group = "dp", a.replicas(rank)
        elements *= len(group) if algorithm == GATHER_MOMENTS else 1
    else:
        group = a.mesh.group(rank, axis)
    if algorithm == "shared" and axis == "tp":
        algorithm = a.sums_by(group)
    if made.places:
        # in a ring every rank sends to its neighbour at once: the first pair is priced for all
        group = tuple(group[i] for i in made.places) if axis != "cp" else group[:2]
    about = made.operation, algorithm, group, elements, made.dtype
    word = WORDS.get(axis, "moments")
    return axis, new_exchange(a, word, *about, kind, stage=stage, edges=made.edges)


# ---- between stages


def messages(a: Arrangement, rank: int, op: Op, samples: int) -> Iterator[AxisExchange]:
    """Yields the messages of SEND_F or SEND_B, for a micro-batch's samples."""
    ends = rank, a.mesh.rank({**a.mesh.coordinates(rank), "pp": op.peer})
    for e in a.division.stages[op.at].takes:
        edge = a.graph.edges[e]
        if op.kind is Kind.SEND_F or edge.requires_grad:
            n = prod(a.local_shape(e, samples, a.mesh.coordinates(rank)))
            about = Collective.MESSAGE, "", ends, n, np.dtype(edge.dtype), op.kind
            yield "pp", new_exchange(a, WORDS["pp"], *about, stage=op.stage)


# ---- on buckets, and at the end of a step


def exchanges_of(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    """Returns the exchanges of a rank in an operation on a bucket, at the end of a step, or those
    that its strategy adds to messages between stages."""
    of_kinds = a.strategy.exchanges, a.store.exchanges, _OF_KIND
    make = next((rows[op.kind] for rows in of_kinds if op.kind in rows), None)
    made = make(a, rank, op) if make else ()
    return ((axis, exchange) for axis, exchange in made if len(exchange.group) > 1)


def _sum(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    bucket, algorithm = buckets_of(a, rank)[op.at], a.algorithm
    if bucket.tied == NOT_TIED or a.store.scatters:
        is_scattered = a.store.zero > 0 and (a.store.scatters or algorithm in REDUCE_SCATTERS)
    else:
        is_scattered = False
    operation = Collective.REDUCE_SCATTER if is_scattered else Collective.ALL_REDUCE
    if a.store.name == "node":
        algorithm = "shared"
    group, n = a.summed_over(rank, bucket), bucket.stop - bucket.start
    yield "dp", new_exchange(a, "gradients", operation, algorithm, group, n, a.dtype, Kind.SUM)


def _gather(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    bucket = buckets_of(a, rank)[op.at]
    group, n = a.summed_over(rank, bucket), bucket.stop - bucket.start
    about = Collective.ALL_GATHER, GATHER, group, n, a.dtype, Kind.GATHER
    yield "dp", new_exchange(a, "parameters", *about)


def _ties(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    dtype, copies = types_of(a.dtype).sums, a.replicas(rank)
    p, r = len(copies), copies.index(rank)
    for bucket in buckets_of(a, rank):
        if bucket.tied != NOT_TIED:
            n, stages = bucket.stop - bucket.start, a.across_stages(rank, bucket, "pp")
            length = chunk_start(n, p, r + 1) - chunk_start(n, p, r)
            about = Collective.ALL_REDUCE, a.algorithm, stages, length, dtype, Kind.TIES
            yield "dp", new_exchange(a, "gradients", *about)


def _terms(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    slices = a.model_on(rank).slices_of(a.sharding.partial_gradients)
    owned, group = [*a.owned_ranges(rank)], a.mesh.group(rank, "tp")
    n = sum(max(min(e, hi) - max(s, lo), 0) for s, e in slices for lo, hi in owned)
    dtype = types_of(a.dtype).sums if a.store.scatters else a.dtype
    algorithm = sum_algorithm(n * dtype.itemsize)
    algorithm = a.sums_by(group) if algorithm == "shared" else algorithm
    if n:
        about = Collective.ALL_REDUCE, algorithm, group, n, dtype, Kind.TERMS
        yield "tp", new_exchange(a, "gradients", *about)


def _agree(a: Arrangement, rank: int, op: Op) -> Iterator[AxisExchange]:
    held, copies, model = a.model_on(rank), a.replicas(rank), a.mesh.group(rank, *MODEL)
    rows = [1] * (a.store.name == "node")  # the norm, which ranks of a node add up together
    if not held.scalars:  # they are not summed in front of the gradients
        rows.append(scalar_count(held.trained) + (a.store.zero > 0))
    for n in rows:
        yield "dp", _scalars(a, "scalars", copies, n)
    yield "model", _scalars(a, WORDS["model"], model, DECIDED + len(a.tied))
    if has_norms(a):
        n = 2 * len(a.graph.variables)
        if any(len(a.store.updaters(a, rank, bucket)) > 1 for bucket in held.buckets):
            yield "dp", _scalars(a, "scalars", copies, n)
        yield "model", _scalars(a, WORDS["model"], model, n)


def _scalars(a: Arrangement, word: str, group: tuple[int, ...], n: int) -> Exchange:
    about = Collective.ALL_REDUCE, SCALARS, group, n, FLOAT64, Kind.AGREE
    return new_exchange(a, word, *about)


def has_norms(a: Arrangement) -> bool:
    """True if the optimizer needs the norms of parameters and of their changes over all ranks."""
    make: Any = optimizer_named(a.config.optimizer)
    return getattr(make, "squares", Optimizer.squares) is not Optimizer.squares


_OF_KIND: Mapping[Kind, Callable[[Arrangement, int, Op], Iterator[AxisExchange]]] = {
    Kind.SUM: _sum,
    Kind.GATHER: _gather,
    Kind.TIES: _ties,
    Kind.TERMS: _terms,
    Kind.AGREE: _agree,
}

PassExchanges: TypeAlias = Callable[[int, int], Mapping[Kind, Mapping[PassExchange, int]]]
"""Returns how often each kind of a stage's passes makes each exchange."""


# ---- the walk


class SameOps(NamedTuple):
    """Operations of a step that exchange the same.

    op        one of them, without a micro-batch and a slot; of a pass of a stage the first unit
    samples   of the micro-batch; 0: it belongs to none
    """

    op: Op
    samples: int


def counted(ops: Iterable[Op], sizes: Sequence[int]) -> Counter[SameOps]:
    """Returns how often operations that exchange the same occur in a step."""
    of = [*sizes, 0]  # micro-batch -1 is none
    alike = Counter((op.kind, op.at, op.peer, op.stage, of[op.micro]) for op in ops)
    first = dict[int, int]()  # unit of each stage: a recording is of all of them together
    for kind, at, _, stage, _ in alike:
        if kind in PASSES:
            first[stage] = min(at, first.get(stage, at))
    return Counter(
        {
            SameOps(Op(kind, stage=stage, at=at, peer=peer), n): times
            for (kind, at, peer, stage, n), times in alike.items()
            if kind not in PASSES or at == first[stage]
        }
    )


def exchanges(
    a: Arrangement, rank: int, ops: Mapping[SameOps, int], passes: PassExchanges
) -> Counter[AxisExchange]:
    """Returns how often a rank makes each exchange in counted operations."""
    made = Counter[AxisExchange]()
    for (op, samples), times in ops.items():
        if op.kind in PASSES:
            for inside, each in _of_pass(passes(op.stage, samples), op.kind).items():
                if inside.axis != STATISTICS or a.strategy.shared_stats(a.config):
                    made[exchange_in_pass(a, rank, inside, op.kind, op.stage)] += times * each
            continue
        sent = messages(a, rank, op, samples) if op.kind in SENDS else ()
        for exchange in chain(sent, exchanges_of(a, rank, op)):
            made[exchange] += times
    return Counter({(axis, e): n for (axis, e), n in made.items() if len(e.group) > 1})


def _of_pass(
    facts: Mapping[Kind, Mapping[PassExchange, int]], kind: Kind
) -> Mapping[PassExchange, int]:
    """Returns the exchanges of a pass of this kind. A forward pass that runs again makes those of
    the first one, but takes over its statistics of the batch."""
    if kind is not Kind.RECOMPUTE:
        return facts.get(kind, {})
    return {made: n for made, n in facts[Kind.F].items() if made.axis != STATISTICS}

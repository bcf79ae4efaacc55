"""What a rank holds between steps, and of activations in a step, in bytes, by formula.

P   numbers of the trained parameters that are here       s   bytes of a number
L   length of the flat buffer, with scalars and padding    k   running sums of the optimizer
d   ranks along dp and cp

                 parameters        gradients            optimizer       slots       windows
local, replica   P s               P s                  k (L - scalars) s
node             P s, first rank   P s, twice on the    k L s / d                   sums, and
                 of a node         first rank                                       parameters
zero 1           L s               L s                  k L s / d
zero 2           L s               L s / d              k L s / d       gradients
zero 3           L s / d           L s / d              k L s / d       both
versions         P s               P s                  k L s           older versions
slices           P s               P s a buffer         k (L - scalars) s
served           P s               P s, or a part       k of a part

In 16 bits s is 2, running sums, buffers and gradients that zero 2 and 3 keep have 4 bytes, and the
optimizer has a master of 4 besides; zero 3 has masters alone. Gradients are read through a slot.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from nnmpi.backend import CPU, Backend
from nnmpi.collectives.step import cut
from nnmpi.comm.allreduce.dispatch import power_of_two
from nnmpi.comm.allreduce.node_memory import memory_of_sums
from nnmpi.dtypes import is_float
from nnmpi.nn.graph import Kept
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.collectives import over, owned
from nnmpi.parallel.arrangement.convolutions import kept_of_sum
from nnmpi.parallel.arrangement.program import SLOTS, micro_batches, ops
from nnmpi.parallel.arrangement.traffic_tp import (
    LOSS_NUMBERS,
    is_short,
    rows_of_loss,
    sums_of,
)
from nnmpi.parallel.stores import piece_of
from nnmpi.schedules.op import Kind
from nnmpi.schedules.reduction_tree import highest, moves, owners_of

At = Mapping[str, int]
"""The coordinates of a rank."""


class Memory(NamedTuple):
    """Bytes on one rank; what a node shares counts on the first of its ranks.

    parameters   values, frozen ones included
    gradients    of trained parameters
    optimizer    running sums
    buffers      such as running statistics
    slots        memory in which values or gradients are for a while only
    windows      shared memory of a node, without the parameters and gradients in it
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int = 0
    slots: int = 0
    windows: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


def memory(a: Arrangement, rank: int, batch: int) -> Memory:
    """What a rank holds between two steps over batches of so many samples."""
    sizes, s = {True: 0, False: 0}, a.dtype.itemsize
    for held in a.held(rank).others:
        variable = a.graph.variables[held.variable]
        of_float = s if variable.is_parameter else a.updated_dtype.itemsize
        width = of_float if is_float(np.dtype(variable.dtype)) else 8
        sizes[variable.is_parameter] += held.size * width
    of_trained = _of_trained(a, rank)
    return of_trained._replace(
        parameters=of_trained.parameters + sizes[True],
        buffers=sizes[False],
        windows=of_trained.windows + _windows_of_sums(a, rank, batch),
    )


def _running_sums(a: Arrangement, n: int) -> int:
    """The bytes of the optimizer for n numbers that it updates."""
    of_sgd = int(a.config.momentum > 0)
    sums = {"sgd": of_sgd, "adam": 2, "adamw": 2, "rmsprop": 1}[a.config.optimizer]
    return (sums + a.is_mixed) * n * a.updated_dtype.itemsize


def _scratch(a: Arrangement, n: int) -> int:
    """The bytes through which the optimizer reads gradients of 16 bits, of n numbers."""
    on = Backend("cuda", CPU.xp) if a.cluster.has_devices else CPU
    return a.is_mixed * a.updated_dtype.itemsize * max(min(n, piece_of(on)), 1)


def _of_trained(a: Arrangement, rank: int) -> Memory:
    """What a rank holds for parameters that are trained."""
    held, s = a.held(rank), a.dtype.itemsize
    whole = sum(one.size for one in held.trained) * s
    n = held.spans[-1][1] - held.spans[0][0] if held.trained else 0  # without scalars
    if a.store == "node":
        return _node(a, rank, whole)
    if a.store.startswith("zero"):
        return _zero(a, rank)
    if a.store == "served":
        return _served(a, rank, whole, n)
    gradients, older = whole, 0
    if a.store == "slices":
        gradients *= highest(moves(owners_of(a.config.slices, a.mesh.size), rank))
    if a.store == "versions":  # stage s of p has one for each micro-batch in flight: p - s
        older = a.mesh.axes["pp"] - a.mesh.coordinates(rank)["pp"] - 1
    slots = older * n * s + _scratch(a, n)
    return Memory(whole, gradients, _running_sums(a, n), slots=slots)


def _node(a: Arrangement, rank: int, whole: int) -> Memory:
    """Each rank updates its slice of each bucket; the node's first rank has what all share."""
    held, s, group = a.held(rank), a.dtype.itemsize, a.replicas(rank)
    node = a.cluster.beside(group)[a.cluster.nodes[rank]]
    is_first = node[0] == rank
    (first, _), (_, n) = held.spans[0], held.spans[-1]
    own = sum(max(hi - max(lo, first), 0) for lo, hi in owned(a, rank))
    windows = _window(n, a.dtype, is_first) + n * s * is_first
    parameters, gradients = whole * is_first, whole * (1 + is_first)
    rest = windows - parameters - gradients
    sums, scratch = _running_sums(a, own), _scratch(a, own)
    return Memory(parameters, gradients, sums, slots=scratch, windows=rest)


def _window(n: int, dtype: np.dtype[Any], is_first: bool) -> int:
    """A rank's share of the memory for sums of n numbers; the node's first rank has the total."""
    one = memory_of_sums(n, dtype, 1)
    return one if is_first else memory_of_sums(n, dtype, 2) - one


def _windows_of_sums(a: Arrangement, rank: int, batch: int) -> int:
    """Memory through which a node sums what is elsewhere; it serves all sums of like lengths."""
    if rank >= a.mesh.size:  # a server
        return 0
    found = set[tuple[tuple[int, ...], int]]()
    if a.store in ("replica", "zero 1"):
        for bucket in a.held(rank).buckets:
            found.add((over(a, rank, bucket), bucket.stop - bucket.start))
        found = {(group, n) for group, n in found if _is_through_memory(a, a.algorithm, group)}
    tp = a.mesh.group(rank, "tp")
    if _is_through_memory(a, a.sums_by(tp), tp):
        sums = {*sums_of(a, rank, micro_batches(a, rank, batch))}
        found.update((tp, n) for n in sums if not is_short(a, n))
    by_length = {(group, power_of_two(n)) for group, n in found}
    return sum(
        _window(n, a.dtype, a.cluster.beside(group)[a.cluster.nodes[rank]][0] == rank)
        for group, n in by_length
    )


def _is_through_memory(a: Arrangement, name: str, group: tuple[int, ...]) -> bool:
    several = len(a.cluster.beside(group)) > 1
    return len(group) > 1 and (name == "shared" or (name == "hierarchical" and several))


def _zero(a: Arrangement, rank: int) -> Memory:
    held, s = a.held(rank), a.dtype.itemsize
    own, lengths = 0, []
    for bucket in held.buckets:
        ranks = over(a, rank, bucket)
        n, p, r = bucket.stop - bucket.start, len(ranks), ranks.index(rank)
        own += cut(n, p, r + 1) - cut(n, p, r)
        lengths.append(n)
    flat, sums, scratch = held.spans[-1][1] * s, _running_sums(a, own), _scratch(a, own)
    kept, gradients = own * a.updated_dtype.itemsize, SLOTS * max(lengths) * s
    ordered = lengths[::-1]  # in the order of memory
    weights = sum(max(ordered[i::SLOTS]) for i in range(min(SLOTS, len(ordered)))) * s
    return {
        1: Memory(flat, flat, sums, slots=scratch),
        2: Memory(flat, kept, sums, slots=gradients + scratch),
        3: Memory(0 if a.is_mixed else kept, kept, sums, slots=gradients + weights + scratch),
    }[a.config.zero]


def _served(a: Arrangement, rank: int, whole: int, n: int) -> Memory:
    if rank < a.mesh.size:
        return Memory(whole, whole, 0)
    k = rank - a.mesh.size
    own = cut(n, a.servers, k + 1) - cut(n, a.servers, k)
    return Memory(whole, own * a.dtype.itemsize, _running_sums(a, own))


# ---- activations, until their backward pass, from the graph

LABELS = 24
"""Bytes of a label, of its place among the classes of a rank, and of the number of its sample."""


def activations(a: Arrangement, rank: int, batch: int) -> int:
    """The most that a rank keeps at a time in a step over a batch of so many samples."""
    sizes = micro_batches(a, rank, batch)
    if a.strategy == "pipedream":  # as many batches are on their way as there are stages
        sizes *= len(a.stages)
    now = most = 0.0
    recomputed = a.config.recompute
    for op in ops(a, rank, len(sizes)):
        n, s = sizes[op.micro] if op.micro >= 0 else 0, op.stage
        whole = of_stage(a, s, n, rank) if s >= 0 else 0.0
        if op.kind is Kind.F:
            now += entering(a, s, n, rank) if recomputed else whole
        elif op.kind is Kind.RECOMPUTE:
            now += whole - entering(a, s, n, rank)
        most = max(most, now)
        if op.kind in (Kind.B, Kind.W):
            now -= whole
    return round(most)


def of_stage(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What a stage keeps of a micro-batch: what comes into it, each edge in memory of its own; the
    edges that its nodes take and return, each memory once; and what nodes keep besides."""
    graph, at, is_last = a.graph, a.mesh.coordinates(rank), stage == len(a.stages) - 1
    edges, besides = set[int](), 0.0
    elsewhere = [k for k in a.stages[stage] if not a.runs(k, rank)]
    for kept in run_together(a, a.stages[stage]):
        inside = {e for k in kept.nodes for e in graph.nodes[k].outputs}
        last = set(graph.nodes[kept.nodes[-1]].outputs)
        if kept.nodes[0] not in elsewhere and any(graph.edges[e].requires_grad for e in last):
            edges |= {e for k in kept.nodes for e in graph.nodes[k].inputs} - inside | last
            besides += _besides(a, kept, samples, at)
    if is_last:
        besides += _of_loss(a, samples, at)
    edges -= {e for k in elsewhere for e in graph.nodes[k].outputs}
    memories = {graph.edges[e].memory for e in edges}
    memories -= {graph.edges[e].memory for e in a.crossing(stage)}
    made = sum(a.local_bytes(e, samples, at) for e in memories)
    return entering(a, stage, samples, rank) + made + besides


def _besides(a: Arrangement, kept: Kept, samples: int, at: At) -> float:
    """What nodes keep besides their edges: as much of it is here as of what it is made from.

    Products keep what they have made of their input; what runs with them keeps masks of the output.
    A column keeps its own positions of an input that is cut along them, and gathers it again.
    A product that gathers its output keeps its own part of it, too.
    """
    k = kept.nodes[0]
    first, last = a.graph.nodes[k], a.graph.nodes[kept.nodes[-1]]
    alone = next(one for one in a.graph.kept if one.nodes == range(k, k + 1))
    before = alone.bytes(samples)
    behind = kept.bytes(samples) - before
    layer = a.sharding.layer_of(k)
    share, own = _share(a, last.outputs[0], at), 0.0
    if layer is not None and layer.gathers:
        part = layer.part(at["tp"])
        share, own = share * part, part * a.local_bytes(last.outputs[0], samples, at)
    if first.kind == "Conv2d" and layer is not None and layer.way.sums_output:
        before = kept_of_sum(a, k, before, samples, at)
    elif first.kind == "Experts":  # on the slots of its own, wherever tokens come from
        before *= layer.part(at["tp"]) if layer else 1
    elif first.inputs:
        before *= _share(a, first.inputs[0], at)
    return before + behind * share + own


def _of_loss(a: Arrangement, samples: int, at: At) -> float:
    """What the loss keeps; on sharded classes its part, and what all ranks have told each other."""
    kept = a.graph.loss.bytes(samples)
    kept *= _share(a, a.graph.outputs[0], at)
    if a.sharding.output is None:
        return kept
    told = LOSS_NUMBERS * a.mesh.axes["tp"] * a.updated_dtype.itemsize + LABELS
    return kept + told * rows_of_loss(a, samples, at)


def entering(a: Arrangement, stage: int, samples: int, rank: int) -> float:
    """What comes into a stage: what is left of a micro-batch that is computed again."""
    at = a.mesh.coordinates(rank)
    return sum(a.local_bytes(e, samples, at) for e in a.crossing(stage))


def run_together(a: Arrangement, nodes: range) -> Iterator[Kept]:
    """The nodes of a stage, those that run as one op together.

    A convolution of some input channels is summed before what follows it.
    """
    widest: dict[int, Kept] = {}
    for kept in sorted(a.graph.kept, key=lambda kept: len(kept.nodes)):
        first, layer = kept.nodes[0], a.sharding.layer_of(kept.nodes[0])
        runs_alone = layer is not None and not layer.way.fuses
        is_inside = nodes.start <= first and kept.nodes.stop <= nodes.stop
        if is_inside and not (runs_alone and len(kept.nodes) > 1):
            widest[first] = kept
    k = nodes.start
    while k < nodes.stop:
        yield widest[k]
        k = widest[k].nodes.stop


def _share(a: Arrangement, e: int, at: At) -> float:
    """How much of an edge is on a rank with these coordinates."""
    return float(np.prod(a.local_shape(e, 1, at)) / max(a.graph.edges[e].numbers, 1))

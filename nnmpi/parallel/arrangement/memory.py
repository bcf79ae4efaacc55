"""What a rank holds, in bytes, by formula.

P   numbers of the trained parameters that are here       s   bytes of a number
L   length of the flat buffer, with scalars and padding    k   running sums of the optimizer
d   ranks along dp

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
"""

from typing import Any, NamedTuple

import numpy as np

from nnmpi.collectives.step import cut
from nnmpi.comm.allreduce.dispatch import power_of_two
from nnmpi.comm.allreduce.node_memory import memory_of_sums
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.program import measured_samples, micro_batches
from nnmpi.parallel.arrangement.slot_walk import SLOTS
from nnmpi.parallel.arrangement.traffic import is_short, over, own_layers, sums_along_tp
from nnmpi.schedules.reduction_tree import highest, moves, owners_of


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
        width = s if variable.dtype.startswith("float") else 8
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
    return sums * n * a.dtype.itemsize


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
    return Memory(whole, gradients, _running_sums(a, n), slots=older * n * s)


def _node(a: Arrangement, rank: int, whole: int) -> Memory:
    """Each rank updates its slice of each bucket; the node's first rank has what all share."""
    held, s, group = a.held(rank), a.dtype.itemsize, a.mesh.group(rank, "dp")
    node = a.cluster.beside(group)[a.cluster.nodes[rank]]
    is_first, p, r = node[0] == rank, len(node), node.index(rank)
    (first, _), (_, n) = held.spans[0], held.spans[-1]
    own = 0
    for start, stop, _ in held.buckets:
        lo, hi = start + cut(stop - start, p, r), start + cut(stop - start, p, r + 1)
        own += max(hi - max(lo, first), 0)
    windows = _window(n, a.dtype, is_first) + n * s * is_first
    parameters, gradients = whole * is_first, whole * (1 + is_first)
    rest = windows - parameters - gradients
    return Memory(parameters, gradients, _running_sums(a, own), windows=rest)


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
        sums = {*sums_along_tp(a, own_layers(a, rank), micro_batches(a, rank, batch))}
        at = a.mesh.coordinates(rank)
        if len(a.stages) > 1 and at["dp"] == at["pp"] == 0:  # has measured all of the model
            samples = measured_samples(a.config, a.mesh.axes["dp"])
            sums.update(sums_along_tp(a, a.sharding.layers, [samples]))
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
    flat, kept, sums = held.spans[-1][1] * s, own * s, _running_sums(a, own)
    gradients = SLOTS * max(lengths) * s
    ordered = lengths[::-1]  # in the order of memory
    weights = sum(max(ordered[i::SLOTS]) for i in range(min(SLOTS, len(ordered)))) * s
    return {
        1: Memory(flat, flat, sums),
        2: Memory(flat, kept, sums, slots=gradients),
        3: Memory(kept, kept, sums, slots=gradients + weights),
    }[a.config.zero]


def _served(a: Arrangement, rank: int, whole: int, n: int) -> Memory:
    if rank < a.mesh.size:
        return Memory(whole, whole, 0)
    k = rank - a.mesh.size
    own = cut(n, a.servers, k + 1) - cut(n, a.servers, k)
    return Memory(whole, own * a.dtype.itemsize, _running_sums(a, own))

"""What a rank sends along tp in a step, and how long the sums are.

Sharded layers name their messages (`tensor/patterns.py`), and each collective has its price here.
With sequence parallelism gradients of which ranks have terms are summed once a step, too.

Where tokens go to experts depends on the data; what is said of them is the most. Of each sample
rank r has t_r tokens, and sends each to at most `top_k` ranks. The E_q experts of rank q have slots
for E_q times their capacity, and send back as many results, but none to q itself. Where all tokens
go to all experts, a step sends what is said here. It sends less where experts are equally loaded:
(p - 1) / p of the tokens leave their rank.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from nnmpi.autograd.ops.experts import slots_of
from nnmpi.collectives.collective import Collective
from nnmpi.collectives.step import bounds as parts_of
from nnmpi.parallel.arrangement.arrangement import Arrangement
from nnmpi.parallel.arrangement.exchanges import Exchange
from nnmpi.parallel.arrangement.program import Passes, forward, passes_of
from nnmpi.parallel.tensor import patterns
from nnmpi.parallel.tensor.halo import Halo
from nnmpi.parallel.tensor.ops import SHORT, Bounds
from nnmpi.parallel.tensor.patterns import LayerMessage
from nnmpi.parallel.tensor.row_graph import window_of_rows
from nnmpi.parallel.tensor.sharding import ShardedLayer
from nnmpi.schedules.op import Kind

LOSS_NUMBERS = 4
"""Of a label, that each rank tells the others for a loss on sharded classes."""


def along_tp(a: Arrangement, rank: int, micro: Sequence[int]) -> Iterator[Exchange]:
    """Messages of sharded layers, and the table of a loss on sharded classes."""
    group = a.mesh.group(rank, "tp")
    if len(group) == 1:
        return
    at, passes = a.mesh.coordinates(rank), passes_of(a, rank, micro)
    for during, s, layer, message, n, times in _messages(a, rank, passes):
        for one in EXCHANGES[message.row.by](a, rank, layer, message, n):
            yield one._replace(during=during, stage=s, times=one.times * times)
    if terms := _terms(a, rank):
        one = summed(a, group, terms, _dtype_of_terms(a))
        yield one._replace(what="gradients", during=Kind.UPDATE)
    last = len(a.stages) - 1
    if a.sharding.output is not None and last in a.model_on(rank).stages:
        for n in forward(passes, last):
            numbers = LOSS_NUMBERS * len(group) * rows_of_loss(a, n, at)
            yield _gathered(group, numbers, a.updated_dtype, "loss")._replace(stage=last)


def rows_of_loss(a: Arrangement, samples: int, at: Mapping[str, int]) -> int:
    """How many rows of scores a rank has: one a sample, or one a position."""
    n, _, *positions = a.local_shape(a.graph.outputs[0], samples, at)
    return n * prod(positions)


def sums_of(a: Arrangement, rank: int, micro: Sequence[int]) -> set[tuple[int, np.dtype[Any]]]:
    """How many numbers sums of a rank add up in a step, and their type."""
    found = {
        (_numbers(a, rank, message, samples), a.dtype)
        for *_, message, samples, _ in _messages(a, rank, passes_of(a, rank, micro))
        if message.row.by is Collective.ALL_REDUCE
    }
    terms = _terms(a, rank)
    return found | ({(terms, _dtype_of_terms(a))} if terms else set())


def is_short(n: int, dtype: np.dtype[Any]) -> bool:
    """Whether latency counts in a sum of so many activations, or terms of gradients."""
    return n * dtype.itemsize <= SHORT


def _dtype_of_terms(a: Arrangement) -> np.dtype[Any]:
    """The type of gradients that a rank updates by, as its store keeps them."""
    return a.updated_dtype if a.store.scatters else a.dtype


def _terms(a: Arrangement, rank: int) -> int:
    """How many gradients a rank sums, since ranks have terms: those that it updates."""
    terms = a.model_on(rank).stretches(a.sharding.terms)
    if not terms:
        return 0
    ends = np.array(terms)
    up_to = np.cumsum(np.stack((np.zeros(len(ends)), ends[:, 1] - ends[:, 0]), 1))
    owned = np.reshape([*a.owned_ranges(rank)], (-1, 2))
    below = np.interp(owned, ends.ravel(), up_to)  # how many terms are in front of each end
    return int((below[:, 1] - below[:, 0]).sum())


# ---- messages of sharded layers


OPERATIONS: Mapping[Kind, frozenset[Kind]] = {
    Kind.F: frozenset({Kind.F, Kind.RECOMPUTE}),
    Kind.I: frozenset({Kind.B, Kind.I}),
    Kind.W: frozenset({Kind.B, Kind.W}),
}
"""The operations of a program in which the messages of a pass are sent."""


def _messages(
    a: Arrangement, rank: int, passes: Passes
) -> Iterator[tuple[Kind, int, ShardedLayer, LayerMessage, int, int]]:
    """The messages of a step, each with the kind and the stage of the passes that send it, its
    layer, the samples of these passes, and how many passes of so many samples there are.

    In the first stage all of a backward pass in two halves is done in the second one.
    """
    for s in a.model_on(rank).stages:
        here = (layer for layer in a.sharding.layers if layer.node in a.stages[s])
        for layer in here:
            for message in layer.sends if a.runs(layer.node, rank) else ():
                kinds = frozenset[Kind]().union(*(OPERATIONS[kind] for kind in message.passes))
                for kind in kinds if s else {Kind.W if k is Kind.I else k for k in kinds}:
                    for n, times in Counter(passes[s, kind]).items():
                        yield kind, s, layer, message, n, times


def _numbers(a: Arrangement, rank: int, message: LayerMessage, samples: int) -> int:
    """How many numbers a message carries, of all ranks along tp together."""
    cp = a.mesh.coordinates(rank)["cp"]
    return a.sharding.sequences.share(message.numbers, cp) * samples


def summed(a: Arrangement, group: tuple[int, ...], n: int, dtype: np.dtype[Any]) -> Exchange:
    """A sum of n numbers of ranks along tp."""
    name = "doubling" if is_short(n, dtype) else a.sums_by(group)
    one = Exchange("activations", Collective.ALL_REDUCE, name, group, n, dtype, Kind.F)
    return one._replace(sums=a.sums_dtype)


def _gathered(
    group: tuple[int, ...], n: int, dtype: np.dtype[Any], what: str, edges: tuple[int, ...] = ()
) -> Exchange:
    return Exchange(what, Collective.ALL_GATHER, "ring", group, n, dtype, Kind.F, edges=edges)


def _by_sum(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    yield summed(a, a.mesh.group(rank, "tp"), _numbers(a, rank, message, samples), a.dtype)


def _by_ring(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    """Half an all-reduce, whose chunks are the parts of the ranks: channels, positions, samples."""
    numbers, group = _numbers(a, rank, message, samples), a.mesh.group(rank, "tp")
    bounds = message.bounds or parts_of(samples, len(group))
    edges = tuple(numbers * b // max(bounds[-1], 1) for b in bounds)
    one = _gathered(group, numbers, a.dtype, "activations", edges)
    sums = a.sums_dtype if message.row.by is Collective.REDUCE_SCATTER else None
    yield one._replace(operation=message.row.by, sums=sums)


def _counted(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    """A gather of how many tokens of each sample chose each expert."""
    gates = a.graph.edges[a.graph.nodes[layer.node].outputs[0]]
    yield _counts(a, rank, samples * gates.sample[-1])


def _counts(a: Arrangement, rank: int, n: int) -> Exchange:
    """A gather of n counts of each rank."""
    group = a.mesh.group(rank, "tp")
    edges = tuple(n * r for r in range(len(group) + 1))
    return _gathered(group, edges[-1], np.dtype(np.int64), "counts", edges)


def _exchanged(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    """Tokens to the ranks of their experts, results back, or the gradients of these."""
    group, node = a.mesh.group(rank, "tp"), a.graph.nodes[layer.node]
    me, C = group.index(rank), a.graph.edges[node.outputs[0]].sample[-1]
    E, top_k, factor = (node.settings[s] for s in ("num_experts", "top_k", "capacity_factor"))
    tokens, own = _lengths(message.bounds), _lengths(layer.bounds)
    slots = slots_of(sum(tokens), E, top_k, factor)
    goes = _most_that_go(me, tokens, own, top_k, slots)
    comes = min(sum(tokens) - tokens[me], own[me] * slots)
    numbers = {
        patterns.TOKENS: sum(goes) * C + sum(n * e for n, e in zip(goes, own, strict=True)),
        patterns.RESULTS: comes * C,
        patterns.RESULT_GRADIENTS: sum(goes) * C,
        patterns.TOKEN_GRADIENTS: comes * (C + own[me]),
    }[message.row]
    if message.row is patterns.TOKENS:
        yield _counts(a, rank, len(group))
    yield Exchange(
        *("tokens", Collective.ALL_TO_ALL, "", group, samples * numbers, a.dtype, Kind.F),
        times=int(samples > 0),
    )


def _of_halo(
    a: Arrangement, rank: int, layer: ShardedLayer, message: LayerMessage, samples: int
) -> Iterator[Exchange]:
    """Rows that others need of this rank, or gradients of those that it needs of others."""
    ends, row = a.mesh.group(rank, "tp")[:2], _numbers(a, rank, message, samples)
    halo = halo_of(a, layer.node, a.mesh.coordinates(rank))
    for rows in halo.sent() if message.row is patterns.HALO else halo.received():
        if rows * row:
            yield Exchange("rows", Collective.MESSAGE, "", ends, rows * row, a.dtype, Kind.F)


def _most_that_go(me: int, tokens: list[int], own: list[int], top_k: int, slots: int) -> list[int]:
    """How many tokens of a sample rank `me` may send to each rank, most where experts are most.

    tokens, own: how many tokens and how many experts each rank has
    """
    left, found = tokens[me] * top_k, [0] * len(own)
    for q in sorted(range(len(own)), key=lambda q: -own[q]):
        if q != me:
            found[q] = min(tokens[me], own[q] * slots, left)
            left -= found[q]
    return found


def _lengths(bounds: Bounds) -> list[int]:
    return [stop - start for start, stop in pairwise(bounds)]


EXCHANGES = {
    Collective.ALL_REDUCE: _by_sum,
    Collective.ALL_GATHER: _by_ring,
    Collective.REDUCE_SCATTER: _by_ring,
    Collective.GATHER_COUNTS: _counted,
    Collective.ALL_TO_ALL: _exchanged,
    Collective.MESSAGE: _of_halo,
}
"""What a rank takes part in for a message of a layer in a pass."""


def halo_of(a: Arrangement, k: int, at: Mapping[str, int]) -> Halo:
    """What a rank along tp needs of the images that a layer takes, of which it has some rows."""
    height = a.graph.edges[a.graph.nodes[k].inputs[0]].sample[1]
    return Halo.of(window_of_rows(a.graph, k), height, a.sharding.ranks, at["tp"])
